"""converged."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.curve import curve, level_at_end, still_falling
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.progress import ERRORS, learned
from whyloss.core.run import Run
from whyloss.core.sample import falling, flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class Converged(Rule):
    """The training loss has come down and stands level: more of the same brings little.

    ## What it detects
    A run that learned, whose loss over the last third is level within its noise or within `share` of what was gained.
    ## Why it matters
    Never an alarm: it says that training longer, as it is, will not help; whether the level is good it doesn't say.
    ## What else looks like this
    A plateau before another drop (XOR, a rate that is too large) stands level, too.
    ## What to do
    If the level is not good enough, change something: the rate, the model, the data. Else stop here.
    """

    name = "converged"
    boundary = Boundary.CURVE
    symptom = True
    change = "Nothing, if the level is good enough."
    verify = "Compare the evaluation figures of the last checkpoints: they are level, too."

    samples: int = threshold(20, unit="samples", why="a third of less shows no level")
    share: float = threshold(0.02, unit="of what was gained", why="what another third would bring at most")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            shape = curve(trace.loss) if trace.loss is not None else None
            reason = says_nothing(run, trace)
            if reason or shape is None or shape.samples < self.samples:
                yield self.skipped(reason or f"needs {self.samples} samples of the loss")
                continue
            last, gained = shape.part(2 / 3), float(shape.levels[0] - shape.levels.min())
            moved = float(last[0] - last[-1])
            level = abs(moved) <= max(ERRORS * shape.error, self.share * gained) and not still_falling(shape)
            if not learned(trace) or not level:
                yield self.passed(f"the loss went from {shape.levels[0]:.4g} to {shape.levels[-1]:.4g}")
                continue
            yield self.finding(
                f"the loss stands level at {level_at_end(shape):.4g}",
                Evidence("change over the last third", moved, max(ERRORS * shape.error, self.share * gained)),
                severity=Severity.INFO,
                place=trace.loss_place,
                first_step=int(shape.steps[len(shape.steps) * 2 // 3]),
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        level = np.r_[falling(150), falling(150, 0.2155, 0.2)]
        return (
            fires("down, then level", sample_run(loss=level), Severity.INFO),
            silent("near miss: still falling", sample_run(loss=np.linspace(2.3, 0.5, 200))),
            silent("near miss: never moved", sample_run(loss=flat(200))),
        )
