"""target-unscaled."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import Leaf, Op, StepGraph, Value
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

SQUARES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")


@dataclass(frozen=True)
class TargetUnscaled(Rule):
    """Regression targets lie far from what the network emits at the start.

    ## What it detects
    At the first recorded step, the targets of a squared or absolute error spread more than `spread` times as wide as
    the predictions, or their mean lies more than `away` deviations (the larger ones) from
    the predictions; and the run suffers: it ends above half of the loss of the best constant prediction, or above half
    of its first loss.
    ## Why it matters
    The output must first travel to the targets. An optimizer whose steps are bounded, as Adam's are by its rate, needs
    distance / rate steps for that; plain gradient descent gets gradients as large as the distance, and may explode.
    ## What else looks like this
    Raw targets that are reached all the same are an info. A head that starts at zero on purpose emits no spread: only
    targets of more than `wide` are held against it.
    ## What to do
    Standardise the targets with the training set's mean and deviation, and undo it when predicting; or set the last
    bias to their mean, and take a logarithm of what spans orders of magnitude.
    """

    name = "target-unscaled"
    boundary = Boundary.DATA
    explains = (
        "loss-off-baseline",
        "loss-diverging",
        "loss-at-baseline",
        "loss-flat",
        "exploding-gradient",
        "gradient-overflow",
        "loss-nonfinite",
        "lr-too-low",
        "lr-too-high",
        "plateau-high",
        "underfitting",
        "clip-too-small",
        "dead-relu",
    )
    change = "Standardise the targets with the training set's mean and deviation; undo it when predicting."
    verify = "Run again with standardised targets: the first loss is about 1, and the loss ends below it."

    spread: float = threshold(100.0, unit="times", why="networks of default initialisation emit 0.1 to 1")
    away: float = threshold(10.0, unit="deviations", why="a bias of that size takes a thousand steps at usual rates")
    wide: float = threshold(10.0, unit="of the target", why="targets of unit size are what a network emits")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        graph = next(iter(trace.graphs), None)
        pairs = list(_pairs(graph)) if graph is not None else []
        if graph is None or not pairs:
            yield self.skipped("needs a recorded step with a squared or absolute error")
            return
        wrong = next((pair for pair in pairs if self._off(*pair[1:])), None)
        if wrong is None:
            _, p, t = pairs[0]
            yield self.passed(f"predictions {p.mean:.3g} ± {p.std:.3g}, targets {t.mean:.3g} ± {t.std:.3g}")
            return
        yield self._found(trace, graph, *wrong)

    def _off(self, prediction: Statistics, target: Statistics) -> bool:
        figures = (prediction.mean, prediction.std, target.mean, target.std)
        if not all(map(math.isfinite, figures)) or math.hypot(target.mean, target.std) < self.wide:
            return False
        distance = abs(target.mean - prediction.mean)
        return target.std > self.spread * prediction.std or distance > self.away * max(target.std, prediction.std)

    def _found(self, trace: Trace, graph: StepGraph, op: Op, prediction: Statistics, target: Statistics) -> Outcome:
        return self.finding(
            f"the targets are {target.mean:.4g} ± {target.std:.3g}, the predictions start at {prediction.mean:.3g} ± "
            f"{prediction.std:.3g}",
            Evidence("deviation of the targets", target.std, self.spread * prediction.std, "", (graph.step,)),
            Evidence("distance of the means", abs(target.mean - prediction.mean), self.away * target.std),
            severity=Severity.WARNING if ends_poorly(trace) else Severity.INFO,
            place=replace(op.place, op=op.name),
            first_step=graph.step,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        squared = (Objective(kind="mse_loss"),)

        def run(loss: Any, mean: float, std: float, variance: float) -> Run:
            graph = _graph(Statistics(low=0.0, high=9e9, mean=mean, std=std, zeros=0.0, nonfinite=0))
            return sample_run(loss=loss, objectives=squared, signals={"target/variance": variance}, graphs=(graph,))

        return (
            fires("prices in dollars, not reached", run(flat(300, 5e10), 2e5, 8e4, 6.4e9), Severity.WARNING),
            fires("years, mean 1990", run(falling(300, 4e6, 3e3), 1990.0, 20.0, 400.0)),
            silent("near miss: standardised", run(flat(300, 1.0), 0.0, 1.0, 1.0)),
            silent("near miss: prices that are reached", run(falling(300, 5e10, 1e8), 2e5, 8e4, 6.4e9)),
            silent("near miss: a mean of 5", run(flat(300, 20.0), 5.0, 0.3, 0.1)),
            silent("near miss: five updates", run(flat(5, 5e10), 2e5, 8e4, 6.4e9)),
            silent("near miss: nothing recorded", sample_run(loss=flat(300, 5e10), objectives=squared)),
        )


def _pairs(graph: StepGraph) -> Iterator[tuple[Op, Statistics, Statistics]]:
    """The losses that compare numbers, with the figures of prediction and target."""
    for op in graph.loss_ops:
        target = graph.target(op)
        if op.kind not in SQUARES or target is None:
            continue
        seen = graph.values[graph.prediction(op)].statistics, graph.values[target].statistics
        if seen[0] is not None and seen[1] is not None:
            yield op, seen[0], seen[1]


def _graph(target: Statistics) -> StepGraph:
    emitted = Statistics(low=-0.5, high=0.5, mean=0.02, std=0.2, zeros=0.0, nonfinite=0)
    values = {
        0: Value(shape=(64, 1), dtype="float32", requires_grad=True, statistics=emitted),
        1: Value(shape=(64, 1), dtype="float32", statistics=target),
        2: Value(shape=(), dtype="float32", requires_grad=True),
    }
    call = Op(name="torch.nn.functional.mse_loss", tensors={"input": 0, "target": 1}, outputs=(2,))
    leaves = (Leaf(value=0, role="input"), Leaf(value=1, role="target"))
    return StepGraph(ops=(call,), values=values, leaves=leaves, losses=(2,), faithful=True)
