"""lr-limited-plateau."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.movement import rates
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.series import Series, noise
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LrLimitedPlateau(Rule):
    """The loss stood level at a large rate and dropped as soon as the rate was lowered.

    ## What it detects
    A drop of the rate to less than `drop` of what it was, after a stretch in which the loss stood level; within as many
    updates afterwards the loss falls by more than `gain` of its level and beyond its noise.
    ## Why it matters
    The plateau was one of the rate: its steps bounced around a valley that smaller ones go down. The updates spent on
    the plateau were wasted.
    ## What else looks like this
    A loss that was still falling before the drop. Data that allows no better: a smaller rate changes nothing. Without a
    drop of the rate in the run, only an experiment can tell: nothing is reported then.
    ## What to do
    Lower the rate earlier, or let a plateau do it (`ReduceLROnPlateau`). It is an info: the schedule did its work.
    """

    name = "lr-limited-plateau"
    boundary = Boundary.UPDATE
    explains = ("plateau-high", "converged", "loss-noisy")
    change = "Lower the rate when the loss stands level: a schedule that decays earlier, or ReduceLROnPlateau."
    verify = "Run again with the drop at half the time: the loss is as low so much earlier."

    drop: float = threshold(0.5, unit="of the rate", why="smaller drops are part of a smooth decay")
    gain: float = threshold(0.1, unit="of the level", why="levels of plateaus wander by less")
    around: int = threshold(15, unit="samples", why="both levels need as many to be known")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            seen, loss, reason = rates(trace), trace.loss, says_nothing(run, trace)
            drops = [d for r in seen[:1] for d in self._drops(r)]
            if reason or loss is None or not drops:
                yield self.skipped(reason or "the rate was not lowered at once: only an experiment can tell")
                continue
            found = [f for d in drops if (f := self._judge(trace, loss.finite, seen[0], d)) is not None]
            yield from found[:1]
            if not found:
                yield self.passed(f"lowering the rate at update {drops[0]} moved the loss no further than its trend")

    def _drops(self, rate: Series) -> list[int]:
        """Updates at which the rate is suddenly lower, and stays so."""
        before, after = rate.values[:-1], rate.values[1:]
        at = np.flatnonzero((after < self.drop * before) & (before > 0))
        return [
            int(rate.steps[i + 1])
            for i in at
            if np.all(rate.values[i + 1 : i + 1 + self.around] <= before[i] * self.drop)
        ]

    def _judge(self, trace: Trace, loss: Series, rate: Series, step: int) -> Finding | None:
        at = int(np.searchsorted(loss.steps, step))
        width = min(at // 4, len(loss) - at, 200)
        if width < self.around:
            return None
        earlier, before, after = (
            float(np.median(loss.values[a:b]))
            for a, b in ((at - 2 * width, at - width), (at - width, at), (at, at + width))
        )
        error = noise(loss.values[at - width : at]) * np.sqrt(np.pi / width)
        level = earlier - before <= max(3 * error, 0.02 * abs(before))
        if not level or before <= 0 or before - after <= max(5 * error, self.gain * before):
            return None
        return self.finding(
            f"the loss stood at {before:.4g} and fell to {after:.4g} when the rate was lowered at update {step}",
            Evidence("loss level before the drop of the rate", before, None, "", (step - width, step)),
            Evidence("loss level after it", after, (1 - self.gain) * before, "", (step, step + width)),
            severity=Severity.INFO,
            place=trace.place,
            first_step=step - width,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        t = np.arange(600)
        late = {"lr[0]": np.where(t < 400, 0.1, 0.01)}
        plateau = np.r_[falling(150, 2.3, 0.8), flat(250, 0.8, 0.05), falling(200, 0.75, 0.3)]
        return (
            fires("level at 0.8 until the rate drops", sample_run(loss=plateau, signals=late), Severity.INFO),
            silent("near miss: still falling before", sample_run(loss=np.linspace(2.3, 0.3, 600), signals=late)),
            silent(
                "near miss: no better afterwards",
                sample_run(loss=np.r_[falling(150, 2.3, 0.8), flat(450, 0.8)], signals=late),
            ),
            silent("near miss: a constant rate", sample_run(loss=plateau)),
        )
