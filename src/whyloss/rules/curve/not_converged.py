"""not-converged."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.curve import curve, still_falling
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.run import Run
from whyloss.core.sample import falling, flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class NotConverged(Rule):
    """The training ended while its loss was still falling.

    ## What it detects
    Over the last third of the run the loss fell beyond its noise, and by more than a twentieth of all that was gained.
    ## Why it matters
    Never an alarm: what the model can do was not reached. Figures of such a run say little about the model.
    ## What else looks like this
    A fine-tuning that is stopped early on purpose. A rate that is too small falls slowly, too, all along.
    ## What to do
    Train longer, or with a larger rate, until the loss stands level; then judge.
    """

    name = "not-converged"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ("lr-too-low", "clip-too-small", "target-unscaled", "input-unscaled")
    change = "Train longer, or with a larger rate."
    verify = "Run again: the loss stands level at the end."

    samples: int = threshold(20, unit="samples", why="a third of less shows no trend")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            shape = curve(trace.loss) if trace.loss is not None else None
            reason = says_nothing(run, trace)
            if reason or shape is None or shape.samples < self.samples:
                yield self.skipped(reason or f"needs {self.samples} samples of the loss")
            elif not still_falling(shape):
                yield self.passed(f"the loss no longer falls: {shape.levels[-1]:.4g} at the end")
            else:
                last = shape.part(2 / 3)
                yield self.finding(
                    f"the loss was still falling when the training ended: from {last[0]:.4g} to {last[-1]:.4g} over "
                    "the last third",
                    Evidence("fall over the last third", float(last[0] - last[-1]), shape.error),
                    severity=Severity.INFO,
                    place=trace.loss_place,
                    first_step=int(shape.steps[len(shape.steps) * 2 // 3]),
                )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            fires("a straight way down", sample_run(loss=np.linspace(2.3, 0.5, 200)), Severity.INFO),
            silent("near miss: level at the end", sample_run(loss=np.r_[falling(150), falling(150, 0.2155, 0.2)])),
            silent("near miss: never moved", sample_run(loss=flat(200))),
        )
