"""loss-hidden-nan."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.evaluation import is_loss
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossHiddenNan(Rule):
    """What was logged as the loss reads 0 where the loss is not a number.

    ## What it detects
    A logged loss that is exactly 0 from some point on, where the training's own loss is seen to be NaN. Where only a
    log is there, one that was far above 0 until then; certain where another series of it is not finite from there on.
    ## Why it matters
    A chart that falls to 0 looks like success. A logger, a filter or `nan_to_num` has hidden the failure.
    ## What else looks like this
    A loss that really reaches 0 (a hinge, exact memory) comes down to it; a term that is switched off, while the loss
    of the training is finite; a series that was never computed is 0 from the start. None of them is reported.
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
    before: int = threshold(5, unit="samples", why="as many show that it was far above 0 until then")

    def check(self, run: Run) -> Iterator[Outcome]:
        read = {f"loss of trace {t.index}": t.loss for t in run.traces if t.loss is not None and not t.tensors}
        logged = {n: s for n, s in (*run.metrics.items(), *read.items()) if len(s) > self.zeros}
        logged = {n: s for n, s in logged.items() if n in read or is_loss(n)}
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
        observed = [t.loss for t in run.traces if t.tensors and t.loss is not None]
        where = next(("the loss is NaN" for x in observed if _turns_nan(x, step)), "")
        if observed and not where:
            return None
        if not observed:
            if not self._abrupt(s, last):
                return None
            where = next((f"{n} is not finite" for n, m in run.metrics.items() if _turns_nan(m, step)), "")
        return self.finding(
            f"{name} reads exactly 0 from update {step} on" + (f", where {where}" if where else ""),
            Evidence(f"{name} before", float(s.values[last]), None, "", (int(s.steps[last]),)),
            Evidence("zeros at the end", len(s) - 1 - last, self.zeros),
            severity=Severity.ERROR if where else Severity.WARNING,
            place=run.traces[0].loss_place if run.traces else None,
            first_step=step,
            certain=bool(where),
        )

    def _abrupt(self, s: Series, last: int) -> bool:
        """Whether it was far above 0 until then, and never 0 before."""
        until = s.values[: last + 1]
        return len(until) >= self.before and bool(
            np.all(until != 0.0) and np.all(np.abs(until[-self.before :]) > self.above * abs(until[0]))
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(logged: ArrayLike, loss: ArrayLike | None = None) -> Run:
            return replace(sample_run(loss=loss), metrics={"loss": Series.of(logged)})

        def log(values: ArrayLike, **others: ArrayLike) -> Run:
            bare = sample_run(loss=values, tensors=(), modules=())
            return replace(bare, metrics={n: Series.of(v) for n, v in others.items()})

        late = np.arange(200) >= 60
        cut, bad = np.where(late, 0.0, falling(200)), np.where(late, np.nan, falling(200))
        return (
            fires("0 where the loss is NaN", run(cut, bad), Severity.ERROR),
            fires("a log that is 0 at once, from 0.5", log(cut), Severity.WARNING),
            fires("the same, with the gradient norm NaN", log(cut, grad_norm=bad), Severity.ERROR),
            silent("near miss: a term that is switched off", run(cut)),
            silent("near miss: comes down to 0", log(np.maximum(np.linspace(1.0, -0.5, 200), 0.0))),
            silent("near miss: 0 again and again", log(np.where(np.arange(200) % 7 == 3, 0.0, cut))),
            silent("near miss: never computed", run(np.zeros(200))),
            silent("near miss: as it is", run(falling(200))),
        )


def _turns_nan(s: Series, step: int) -> bool:
    """Not finite from about that step on, finite before."""
    early = s.values[s.steps < step]
    return bool(np.any(~np.isfinite(s.since(step).values)) and np.any(np.isfinite(early)))
