"""loss-noisy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.curve import curve, level_at_end
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import noise
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossNoisy(Rule):
    """The loss of single batches scatters as widely as its level.

    ## What it detects
    In the second half, the noise from one update to the next is above `share` of the level of the loss.
    ## Why it matters
    Never an alarm: single losses say nothing then, and a curve must be smoothed before it is read.
    ## What else looks like this
    Small batches of unlike examples, reinforcement learning, a loss near 0: all of them healthy.
    ## What to do
    Look at a running mean. Larger batches make it smoother where that matters.
    """

    name = "loss-noisy"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ("lr-too-high",)
    change = "Smooth the curve before reading it; larger batches scatter less."
    verify = "A running mean over a tenth of the run shows the trend."

    share: float = threshold(0.3, unit="of the level", why="usual batches scatter by a tenth")
    samples: int = threshold(50, unit="samples", why="noise is not known from fewer")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            loss = trace.loss
            shape = curve(loss) if loss is not None else None
            reason = says_nothing(run, trace)
            if reason or loss is None or shape is None or shape.samples < self.samples:
                yield self.skipped(reason or f"needs {self.samples} samples of the loss")
                continue
            later = loss.finite.values[len(loss.finite) // 2 :]
            scatter, level = noise(later), level_at_end(shape)
            if not scatter > self.share * abs(level):
                yield self.passed(f"single losses scatter by {scatter:.3g} around {level:.3g}")
                continue
            yield self.finding(
                f"single losses scatter by {scatter:.3g} around a level of {level:.3g}",
                Evidence("noise from one update to the next", scatter, self.share * abs(level)),
                severity=Severity.INFO,
                place=trace.loss_place,
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            fires("noise of half the level", sample_run(loss=np.abs(falling(200, noise=0.5))), Severity.INFO),
            silent("near miss: three per cent", sample_run(loss=np.asarray(falling(200)))),
        )
