"""lr-schedule-collapsed."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.lines import place_at
from whyloss.core.movement import rates
from whyloss.core.run import Call, Trace
from whyloss.core.sample import ORDER, falling, flat, sample_run
from whyloss.core.series import Series, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LrScheduleCollapsed(Rule):
    """The schedule has brought the rate to next to nothing long before the end.

    ## What it detects
    For more than `share` of the updates, the rate of every group is below `low` of its highest value and stays there,
    while the loss stands above `good` of where it began.
    ## Why it matters
    The rest of the run changes nothing: the loss stays where the rate died.
    ## What else looks like this
    A cosine or linear decay reaches 0 at the end, not before. A warm-up begins low. Restarts come back. A decay that
    ends a training which had converged does no harm: an info.
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

    low: float = threshold(1e-2, unit="of the highest rate", why="such steps move weights a hundred times less")
    share: float = threshold(0.4, unit="of the updates", why="a cosine is below a hundredth for its last 7 %")
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
        peak, last = max(r.high.max() for r in seen), max(r.last for r in seen)
        scheduler = next((c for order in trace.orders for c in order if c.what == "scheduler"), None)
        each = "" if scheduler is None else "; the scheduler steps at every update"
        yield self.finding(
            f"the rate fell from {peak:.3g} to {last:.3g} and is below a hundredth of it since update {since}{each}",
            Evidence("rate at the end", last, self.low * peak, "", (since, trace.updates - 1)),
            Evidence(
                "updates at less than that", trace.updates - since, self.share * trace.updates, f"of {trace.updates}"
            ),
            severity=Severity.WARNING if self._hurts(trace, since) else Severity.INFO,
            place=trace.place if scheduler is None else place_at(scheduler.file, scheduler.line),
            first_step=since,
            certain=True,
        )

    def _dead_since(self, rate: Series) -> int | None:
        """The first update since which the rate has been low, after its peak; None where it is not at the end."""
        alive = np.flatnonzero(rate.high > self.low * rate.high.max())
        return int(rate.steps[alive[-1]]) + 1 if alive[-1] < len(rate) - 1 else None

    def _hurts(self, trace: Trace, since: int) -> bool:
        """Whether the loss stands above a tenth of where it began: with the rate alive it could have gone on."""
        loss = trace.loss
        result = fall(loss) if loss is not None else None
        return result is None or result.start <= 0 or result.end > self.good * result.start

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        t = np.arange(400)
        early = {"lr[0]": 1e-2 * 0.9**t}
        cosine = {"lr[0]": 1e-2 * (1 + np.cos(np.pi * t / 400)) / 2}
        stopped = np.r_[falling(60, 2.3, 1.5), flat(340, 1.5)]
        return (
            fires("0.9 at every update", sample_run(loss=stopped, signals=early), Severity.WARNING),
            fires(
                "the same, with the scheduler's line",
                sample_run(loss=stopped, signals=early, order=(*ORDER, Call("scheduler", "train.py", 24))),
            ),
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
