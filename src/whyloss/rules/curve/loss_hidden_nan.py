"""loss-hidden-nan."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.curve import LOSS
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossHiddenNan(Rule):
    """What was logged as the loss reads 0 where the loss is not a number.

    ## What it detects
    A logged loss that is exactly 0 from some point on, although it had been noisy and far above 0 before; certain where
    the training's own loss is seen to be NaN there.
    ## Why it matters
    A chart that falls to 0 looks like success. A logger, a filter or `nan_to_num` has hidden the failure.
    ## What else looks like this
    A loss that really reaches 0 (a hinge, exact memory) comes down to it; a series that was never computed is 0 from
    the start. Neither is reported.
    ## What to do
    Log the loss as it is, and stop at the first value that is not finite.
    """

    name = "loss-hidden-nan"
    boundary = Boundary.CURVE
    explained_by = ("data-nonfinite", "nonfinite-forward", "nonfinite-backward", "gradient-overflow", "loss-nonfinite")
    change = "Log the loss as it is; stop at the first value that is not finite."
    verify = "Run again: the log shows nan where the loss is nan."

    zeros: int = threshold(3, unit="samples", why="one or two may be rounded")
    above: float = threshold(0.05, unit="of the first value", why="a loss that comes down to 0 passes through less")

    def check(self, run: Run) -> Iterator[Outcome]:
        logged = {name: s for name, s in run.metrics.items() if LOSS.search(name) and len(s) > self.zeros}
        if not logged:
            yield self.skipped("no loss was logged")
            return
        found = [f for name, s in logged.items() if (f := self._judge(run, name, s)) is not None]
        yield from found
        if not found:
            yield self.passed(f"{', '.join(list(logged)[:3])} do not end in zeros")

    def _judge(self, run: Run, name: str, s: Series) -> Finding | None:
        nonzero = np.flatnonzero(s.values != 0.0)
        if not len(nonzero) or len(s) - 1 - nonzero[-1] < self.zeros:
            return None
        last = int(nonzero[-1])
        step = int(s.steps[last + 1])
        loss = next((t.loss for t in run.traces if t.loss is not None), None)
        nan = loss is not None and bool(np.isnan(loss.since(step).values).any())
        if not nan and not abs(s.values[last]) > self.above * abs(s.first):
            return None
        return self.finding(
            f"{name} reads exactly 0 from update {step} on" + (", where the loss is NaN" if nan else ""),
            Evidence(f"{name} before", float(s.values[last]), None, "", (int(s.steps[last]),)),
            Evidence("zeros at the end", len(s) - 1 - last, self.zeros),
            severity=Severity.ERROR if nan else Severity.WARNING,
            place=run.traces[0].step_place if run.traces else None,
            first_step=step,
            certain=nan,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(logged: ArrayLike, loss: ArrayLike | None = None) -> Run:
            return replace(sample_run(loss=loss), metrics={"loss": Series.of(logged)})

        cut = np.where(np.arange(200) < 120, falling(200), 0.0)
        bad = np.where(np.arange(200) < 120, falling(200), np.nan)
        return (
            fires("0 where the loss is NaN", run(cut, bad), Severity.ERROR),
            fires("0 at once, from 0.5", run(np.where(np.arange(200) < 60, falling(200), 0.0)), Severity.WARNING),
            silent("near miss: comes down to 0", run(np.maximum(np.linspace(1.0, -0.5, 200), 0.0))),
            silent("near miss: never computed", run(np.zeros(200))),
            silent("near miss: as it is", run(falling(200))),
        )
