"""train-eval-gap."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whyloss.core.feed import Evaluation, Fed, eval_loss_name
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.levels import own_loss
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Floats, Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class TrainEvalGap(Rule):
    """On the very examples it is trained on, the model is much worse in evaluation mode than in training mode.

    ## What it detects
    An evaluation in evaluation mode of examples that were trained on, whose loss is more than `times` that of training
    and above it by more than `share` of the first loss, in the last half of the evaluations.
    ## Why it matters
    It is no overfitting, since the examples are the same: the two modes compute different functions. The running
    statistics of a batch normalisation do not describe what the layer sees in training, mostly.
    ## What else looks like this
    Dropout makes the training loss the higher one. Regularisers and weights belong to the training loss alone: the loss
    op's own mean is compared where it is known. Right after the start, running statistics lag behind. None is reported.
    ## What to do
    See what differs: larger batches or GroupNorm in place of batch statistics from few examples, a larger momentum of
    the running statistics, no batch normalisation that is shared between two kinds of data.
    """

    name = "train-eval-gap"
    boundary = Boundary.EVALUATION
    symptom = True
    explained_by = (
        "batchnorm-tiny-batch",
        "batch-leak",
        "train-mode-in-evaluation",
        "dropout-always-on",
        "eval-mode-in-training",
        "duplicate-batches",
        "unshuffled-data",
        "lr-too-high",
    )
    change = (
        "Compare one batch in both modes layer by layer: where they part, running statistics are not those of a batch."
    )
    verify = "Evaluate one training batch in both modes without an update between: the losses agree within noise."

    times: float = threshold(2.0, unit="times the training loss", why="healthy runs were below 1.3")
    share: float = threshold(0.1, unit="of the first loss", why="near zero, ratios say nothing")
    sweeps: int = threshold(4, unit="evaluations", why="running statistics lag behind at first")

    def check(self, run: Run) -> Iterator[Outcome]:
        pairs = [(e, found) for e in run.evaluations if (found := self._compared(run, e)) is not None]
        if not pairs:
            yield self.skipped(f"needs {self.sweeps} evaluations, in evaluation mode, of examples that were trained on")
            return
        wrong = [f for e, (train, own) in pairs if (f := self._judge(e, train, own)) is not None]
        yield from wrong
        if not wrong:
            (_, (train, own)), *_ = pairs
            yield self.passed(f"the same examples: {train[-1]:.3g} in training mode, {own[-1]:.3g} in evaluation mode")

    def _compared(self, run: Run, e: Evaluation) -> tuple[Floats, Floats] | None:
        """Training loss around each evaluation, and the loss of the evaluation."""
        series = run.metrics.get(eval_loss_name(e.index))
        trained_on = e.distinct > 0 and e.shared >= 0.95 * e.distinct and e.training == 0
        trace = next(iter(run.traces), None)
        own = own_loss(trace) if trace is not None else None
        if series is None or own is None or not trained_on or len(series.finite) < self.sweeps:
            return None
        series = series.finite
        before = np.array([_around(own, step) for step in series.steps])
        return before, series.values

    def _judge(self, e: Evaluation, train: Floats, evaluated: Floats) -> Finding | None:
        half = len(train) // 2
        here, there = float(np.median(train[half:])), float(np.median(evaluated[half:]))
        first = abs(float(train[0]))
        if not np.isfinite(here) or there <= self.times * here or there - here <= self.share * first:
            return None
        if np.any(evaluated[half:] <= train[half:]):
            return None
        return self.finding(
            f"examples that were trained on have a loss of {there:.3g} in evaluation mode and {here:.3g} in training",
            Evidence("loss in evaluation mode", there, self.times * here, "", (e.first, e.last)),
            Evidence("loss in training mode", here),
            severity=Severity.WARNING,
            place=next((p for p in e.places if p.file), Place()),
            first_step=e.first,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(20, 200, 20)

        def run(values: Any, **evaluation: Any) -> Run:
            fields: dict[str, Any] = {"index": 0, "distinct": 200, "shared": 200, "passes": 40}
            made = Evaluation(**(fields | evaluation))
            metrics = {eval_loss_name(0): Series.of(values, steps)}
            fed = Fed(passes=100, examples=3200, distinct=640)
            return replace(sample_run(loss=falling(200)), evaluations=(made,), metrics=metrics, fed=fed)

        good = falling(200)[steps]
        return (
            fires("batch normalisation with lagging statistics", run(np.linspace(3.0, 4.0, 9)), Severity.WARNING),
            silent("near miss: the same loss", run(good)),
            silent("near miss: lower, as with dropout", run(0.7 * good)),
            silent("near miss: held-out examples", run(np.linspace(3.0, 4.0, 9), shared=0)),
            silent("near miss: in training mode", run(np.linspace(3.0, 4.0, 9), training=40)),
            silent("near miss: statistics that lag behind at first", run(np.r_[[5.0, 3.0], good[2:]])),
            silent("near miss: twice of nearly nothing", run(good * 0 + 0.25)),
        )


def _around(own: Series, step: int) -> float:
    """Median of the twenty losses before a step."""
    values = own.finite.values[own.finite.steps <= step][-20:]
    return float(np.median(values)) if len(values) else float("nan")
