"""lr-schedule-collapsed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.curve import curve, still_falling
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.movement import rates
from whyloss.core.progress import fell
from whyloss.core.run import Call, Trace
from whyloss.core.sample import ORDER, falling, flat, sample_run
from whyloss.core.series import Series, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LrScheduleCollapsed(Rule):
    """The schedule has brought the rate to next to nothing long before the end.

    ## What it detects
    For more than `share` of the updates, the rate of every group is below `low` of its highest value and stays there.
    An alarm where the loss was still falling when the rate left a tenth of its peak, or ends poorly after no more than
    `alive` of the updates that a constant rate would have made; else an info.
    ## Why it matters
    The rest of the run changes nothing: the loss stays where the rate died.
    ## What else looks like this
    A cosine or linear decay reaches 0 at the end, not before; steps of a tenth, three times in a run, end at a
    thousandth. A warm-up begins low. Restarts come back. A decay that ends a training which had converged does no
    harm: an info. A search for a rate peaks far above what is used afterwards: where the loss goes on falling at the
    low rate, nothing is reported.
    ## What to do
    Step the schedule once an epoch if it counts epochs (`gamma=0.9` an update is 1e-5 after 110 updates), and give it
    the true number of steps.
    """

    name = "lr-schedule-collapsed"
    boundary = Boundary.UPDATE
    explains = (
        "loss-flat",
        "loss-at-baseline",
        "lr-too-low",
        "plateau-high",
        "underfitting",
        "update-not-landing",
        "converged",
    )
    change = "Step the scheduler as often as its counts mean (epochs or updates), and give it the true number of steps."
    verify = "Run again: the rate is above a hundredth of its highest value for most of the run."

    low: float = threshold(1e-3, unit="of the highest rate", why="three customary steps of a tenth end there")
    share: float = threshold(0.4, unit="of the updates", why="a cosine is below a thousandth for its last 2 %")
    alive: float = threshold(0.1, unit="of the updates", why="a cosine is worth half of them, steps of a tenth a third")
    updates: int = threshold(50, unit="updates", why="shorter runs have no schedule to speak of")
    good: float = threshold(0.1, unit="of the first level", why="a run that came so far had done its work")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        seen = [r for r in rates(trace) if len(r) and np.isfinite(r.values).all() and r.high.max() > 0]
        if not seen or trace.updates < self.updates:
            yield self.skipped(f"needs the rate of {self.updates} updates")
            return
        dead = [self._dead_since(r) for r in seen]
        since = max(dead) if all(d is not None for d in dead) else None  # type: ignore[type-var]
        if since is None or trace.updates - since < self.share * trace.updates:
            low, high = min(r.low.min() for r in seen), max(r.high.max() for r in seen)
            yield self.passed(f"rates between {low:.3g} and {high:.3g}, alive for most of the run")
            return
        loss = trace.loss
        if loss is not None and (after := fall(loss.since(since))) is not None and fell(after):
            yield self.passed(f"the loss goes on falling at less than {self.low:.0e} of the highest rate")
            return
        peak, last = max(float(r.high.max()) for r in seen), max(r.last for r in seen)
        worth = max(float(r.values.sum() / r.high.max()) for r in seen) * trace.updates / len(seen[0])
        each = _at_each_update(seen, since)
        scheduler = next((c for order in trace.orders for c in order if c.what == "scheduler"), None)
        yield self.finding(
            f"the rate fell from {peak:.3g} to {last:.3g} and is below a thousandth of its peak since update {since}: "
            f"all {trace.updates} updates are worth {worth:.3g} at the peak"
            + ("; the schedule lowers it at every update" if each else ""),
            Evidence("rate at the end", last, self.low * peak, "", (since, trace.updates - 1)),
            Evidence(
                "updates at less than that", trace.updates - since, self.share * trace.updates, f"of {trace.updates}"
            ),
            Evidence("sum of the rates, over the peak", worth, self.alive * trace.updates, "updates"),
            severity=Severity.WARNING if self._hurts(trace, seen, worth) else Severity.INFO,
            place=trace.place if scheduler is None else scheduler.place,
            first_step=since,
            certain=True,
        )

    def _dead_since(self, rate: Series) -> int | None:
        """The first update since which the rate has been low, after its peak; None where it is not at the end."""
        alive = np.flatnonzero(rate.high > self.low * rate.high.max())
        return int(rate.steps[alive[-1]]) + 1 if alive[-1] < len(rate) - 1 else None

    def _hurts(self, trace: Trace, seen: list[Series], worth: float) -> bool:
        """Whether the loss was still falling while the rate was alive, and stands above a tenth of where it began; or
        ends poorly after next to no updates at all."""
        loss = trace.loss
        result = fall(loss) if loss is not None else None
        if loss is None or result is None or (result.start > 0 and result.end <= self.good * result.start):
            return False
        if worth < self.alive * trace.updates and ends_poorly(trace):
            return True
        alive = max(int(r.steps[np.flatnonzero(r.high >= 0.1 * r.high.max())[-1]]) for r in seen)
        shape = curve(loss.until(alive))
        return shape is not None and still_falling(shape)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        t = np.arange(400)
        early = {"lr[0]": 1e-2 * 0.9**t}
        cosine = {"lr[0]": 1e-2 * (1 + np.cos(np.pi * t / 400)) / 2}
        stopped = np.r_[falling(60, 2.3, 1.5), flat(340, 1.5)]
        staircase = 0.1 * 0.1 ** np.floor(t / 100)
        level, late = np.r_[falling(100, 2.3, 0.8), flat(300, 0.8)], np.where(t < 150, 1e-2, 1e-6)
        search = np.where(t < 60, 1e-7 * 1.4**t, 1e-3)
        return (
            fires("0.9 at every update", sample_run(loss=stopped, signals=early), Severity.WARNING),
            fires(
                "the same, with the scheduler's line",
                sample_run(loss=stopped, signals=early, order=(*ORDER, Call("scheduler", "train.py", 24))),
            ),
            silent(
                "near miss: steps of a tenth", sample_run(loss=falling(400, 6.9, 1.7), signals={"lr[0]": staircase})
            ),
            silent("near miss: level long before the rate falls", sample_run(loss=level, signals={"lr[0]": late})),
            silent("near miss: a search for a rate before", sample_run(loss=falling(400), signals={"lr[0]": search})),
            silent("near miss: cosine to 0", sample_run(loss=falling(400), signals=cosine)),
            silent(
                "near miss: warm-up", sample_run(loss=falling(400), signals={"lr[0]": 1e-3 * np.minimum(t / 300, 1)})
            ),
            silent("near miss: had converged before", sample_run(loss=falling(400, 2.3, 0.01), signals=early)),
            silent(
                "near miss: restarts",
                sample_run(loss=falling(400), signals={"lr[0]": 1e-2 * np.cos(np.pi / 2 * (t % 100) / 100) ** 8}),
            ),
            silent("near miss: constant", sample_run()),
        )


def _at_each_update(seen: list[Series], since: int) -> bool:
    """Whether the rate changed at nearly every update until it had died."""
    moves = [np.diff(r.values[r.steps <= since]) != 0 for r in seen]
    return any(len(m) > 0 and m.mean() > 0.9 for m in moves)
