"""underfitting."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.curve import curve, fall_at_end, level_at_end
from whyloss.core.evaluation import evaluation_losses
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import baselines, own_loss, says_nothing
from whyloss.core.run import Run
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.series import Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class Underfitting(Rule):
    """Training and held-out loss both stand high, and close to each other.

    ## What it detects
    The training loss stands above `high` of the loss of the best constant prediction, where as many updates again at
    the pace of the last sixth would leave it, too; and a held-out loss is within `gap` of it.
    ## Why it matters
    The model does not even describe what it was shown: more data or regularisation can't help.
    ## What else looks like this
    Data that allows no better. A curve can't tell that from a model that is too small: it is an info.
    ## What to do
    A larger model, less regularisation, better features; first fit one single batch to see whether the wiring is able.
    """

    name = "underfitting"
    boundary = Boundary.CURVE
    symptom = True
    explains = ("not-converged", "plateau-high", "converged")
    explained_by = (
        "missing-nonlinearity",
        "dead-relu",
        "saturated-activation",
        "weight-decay-dominates",
        "lr-too-low",
        "lr-too-high",
        "lr-zero",
        "frozen-parameters",
        "detached-parameters",
        "output-range",
        "softmax-before-cross-entropy",
        "input-unscaled",
        "labels-uninformative",
    )
    change = "Use a larger model, less regularisation, or better features."
    verify = "Run again with twice the width: both losses end lower."

    high: float = threshold(0.4, unit="of the best constant loss", why="a model that describes its data is below")
    gap: float = threshold(0.25, unit="of the training loss", why="a larger gap is one of generalisation")
    updates: int = threshold(100, unit="updates", why="a third of less shows no level")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            own, known = own_loss(trace), baselines(trace)
            shape = curve(own) if own is not None else None
            held_out = {n: s.finite for n, s in evaluation_losses(run).items() if len(s.finite) >= 3}
            reason = says_nothing(run, trace)
            if reason or shape is None or not known or not held_out or trace.updates < self.updates:
                yield self.skipped(reason or "needs a loss whose baseline is known, and one on held-out data")
                continue
            level, best = level_at_end(shape), known[-1]
            name, other = next(iter(held_out.items()))
            end = float(np.median(other.values[-3:]))
            ahead = level - 6 * fall_at_end(shape)  # of a sixth of the run
            if ahead <= self.high * best.value or abs(end - level) > self.gap * level:
                yield self.passed(f"training loss {level:.4g}, {name} {end:.4g}; {best.name} is {best.value:.4g}")
                continue
            yield self.finding(
                f"training loss {level:.4g} and {name} {end:.4g} stand at {level / best.value:.0%} of {best.name}",
                Evidence("training loss at the end", level, self.high * best.value),
                Evidence(f"{name} at the end", end, (1 + self.gap) * level),
                severity=Severity.INFO,
                place=trace.loss_place,
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(10, 300, 10)

        def run(train: ArrayLike, held_out: float) -> Run:
            return replace(
                sample_run(loss=train), metrics={"val_loss": Series.of(np.full(len(steps), held_out), steps)}
            )

        high = np.r_[falling(100, 2.3, 1.6), flat(200, 1.6)]
        return (
            fires("both at 1.6 of 2.3", run(high, 1.65), Severity.INFO),
            fires("still falling, at a pace that leads nowhere", run(np.linspace(2.3, 2.0, 300), 2.0), Severity.INFO),
            silent("near miss: both low", run(np.r_[falling(100), flat(200, 0.2)], 0.22)),
            silent("near miss: held-out far above", run(high, 3.0)),
            silent("near miss: no held-out data", sample_run(loss=high)),
        )
