"""input-unscaled."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.run import Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import NORMS, Leaf, Op, StepGraph, Value
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class InputUnscaled(Rule):
    """What the first layer is given is far from unit scale, or its columns are of very different scales.

    ## What it detects
    In a recorded step, the data that enters an affine layer has a root mean square above `large` or below `small`, or
    the standard deviations of its columns differ by more than `apart` and the widest is above `wide`; and the run
    suffers: it ends above half of the loss of the best constant prediction, or has not learned.
    ## Why it matters
    Default initialisation and customary rates expect inputs of unit scale. Larger ones saturate or explode the first
    layer and make its gradients as much larger; one large column drowns the others; tiny ones leave the first layer
    without a signal.
    ## What else looks like this
    A network that normalises by itself (batch or layer normalisation on its inputs or right after the first layer, a
    division in `forward`) is not reported. A run that learns well all the same is an info. Token ids are no scale.
    ## What to do
    Standardise each column with the mean and deviation of the training set; divide images by 255.
    """

    name = "input-unscaled"
    boundary = Boundary.DATA
    explains = (
        "loss-off-baseline",
        "loss-diverging",
        "loss-at-baseline",
        "loss-flat",
        "dead-relu",
        "saturated-activation",
        "exploding-gradient",
        "activation-explosion",
        "activation-collapse",
        "bad-init-scale",
        "gradient-overflow",
        "loss-nonfinite",
        "zero-gradient",
        "lr-too-high",
        "plateau-high",
        "loss-spikes",
        "loss-oscillating",
        "underfitting",
        "clip-too-small",
        "class-imbalance",
    )
    change = "Standardise each input column with the training set's mean and deviation (images: divide by 255)."
    verify = "Run again with standardised inputs: the first loss is near its baseline and the loss ends lower."

    large: float = threshold(30.0, unit="root mean square", why="default initialisation saturates from about there")
    small: float = threshold(1e-3, unit="root mean square", why="the first layer's output is then below its bias")
    wide: float = threshold(10.0, unit="deviation of the widest column", why="a pixel that hardly varies harms nobody")
    apart: float = threshold(100.0, unit="times", why="a column then moves the output by as much as a hundred others")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        graph = next(iter(trace.graphs), None)
        if graph is None:
            yield self.skipped("needs a recorded step")
            return
        entries = [(op, seen) for op, leaf in graph.entries if (seen := _statistics(graph, leaf)) is not None]
        wrong = next(((op, s) for op, s in entries if self._off(s) and not _normalised(graph, op)), None)
        if not entries:
            yield self.skipped("no data enters an affine layer as it came")
        elif wrong is None:
            yield self.passed(f"root mean square of the input {', '.join(f'{_size(s):.3g}' for _, s in entries[:3])}")
        else:
            yield self._found(trace, graph, *wrong)

    def _off(self, seen: Statistics) -> bool:
        size = _size(seen)
        return math.isfinite(size) and (size > self.large or 0 < size < self.small or self._apart(seen))

    def _apart(self, seen: Statistics) -> bool:
        """A column that hardly varies is no more than a constant one: some other must be large."""
        return _ratio(seen) > self.apart and seen.scales is not None and seen.scales[1] > self.wide

    def _found(self, trace: Trace, graph: StepGraph, op: Op, seen: Statistics) -> Outcome:
        size, ratio = _size(seen), _ratio(seen)
        if self.small <= size <= self.large:
            what = f"columns of the input differ {ratio:.3g} times in scale"
        else:
            what = f"the input of the first layer has a root mean square of {size:.3g}"
        columns = (
            (Evidence("largest over smallest deviation of a column", ratio, self.apart, "times"),) if ratio else ()
        )
        limit = self.small if size < self.small else self.large
        return self.finding(
            f"{what} (from {seen.low:.4g} to {seen.high:.4g})",
            Evidence("root mean square of the input", size, limit, "", (graph.step,)),
            *columns,
            severity=Severity.WARNING if ends_poorly(trace) else Severity.INFO,
            place=replace(op.place, module=op.module or None, op=op.name),
            first_step=graph.step,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        columns: dict[str, Any] = {"mean": 70.0, "std": 200.0, "high": 1680.0, "scales": (0.1, 320.0)}
        poor = falling(200, 30.0, 2.1)
        return (
            fires("raw table columns", sample_run(loss=poor, graphs=(_graph(**columns),)), Severity.WARNING),
            fires("pixels of 0 … 255, stuck", sample_run(loss=flat(200), graphs=(_graph(mean=80.0, std=90.0),))),
            fires("inputs of 1e-4, stuck", sample_run(loss=flat(200), graphs=(_graph(mean=0.0, std=1e-4),))),
            silent("near miss: unit scale, stuck", sample_run(loss=flat(200), graphs=(_graph(),))),
            silent("near miss: pixels of 0 … 255 that are learned", sample_run(graphs=(_graph(mean=80.0, std=90.0),))),
            silent(
                "near miss: pixels of 0 … 255 with a normalisation after the first layer",
                sample_run(loss=flat(200), graphs=(_graph("torch.nn.functional.batch_norm", mean=80.0, std=90.0),)),
            ),
            silent(
                "near miss: standardised, with a pixel that hardly varies",
                sample_run(loss=flat(200), graphs=(_graph(scales=(1e-7, 1.0)),)),
            ),
            silent("near miss: five updates", sample_run(loss=poor[:5], graphs=(_graph(**columns),))),
            silent("near miss: nothing recorded", sample_run(loss=flat(200))),
        )


def _statistics(graph: StepGraph, leaf: Leaf) -> Statistics | None:
    value = graph.values[leaf.value]
    return value.statistics if value.floating else None


def _size(seen: Statistics) -> float:
    return math.hypot(seen.mean, seen.std)


def _ratio(seen: Statistics) -> float:
    """Of the largest to the smallest deviation of a column; 0 where it is not known or a column is constant."""
    least, most = seen.scales or (0.0, 0.0)
    return most / least if least > 0 else 0.0


def _normalised(graph: StepGraph, op: Op) -> bool:
    """A normalisation right behind the layer undoes a common scale."""
    return any(other.kind in NORMS for other in graph.users(op))


def _graph(after: str = "torch.relu", **statistics: Any) -> StepGraph:
    given = {"low": 0.0, "high": 3.0, "mean": 0.0, "std": 1.0, "zeros": 0.0, "nonfinite": 0}
    values = {
        0: Value(shape=(64, 13), dtype="float32", statistics=Statistics(**(given | statistics))),
        1: Value(shape=(32, 13), dtype="float32", requires_grad=True),
        2: Value(shape=(64, 32), dtype="float32", requires_grad=True),
        3: Value(shape=(64, 32), dtype="float32", requires_grad=True),
        4: Value(shape=(), dtype="float32", requires_grad=True),
    }
    ops = (
        Op(name="torch.nn.functional.linear", tensors={"input": 0, "weight": 1}, outputs=(2,), module="fc1"),
        Op(name=after, tensors={"input": 2}, outputs=(3,)),
        Op(name="torch.Tensor.mean", tensors={"self": 3}, outputs=(4,)),
    )
    leaves = (Leaf(value=0, role="input"), Leaf(value=1, role="parameter", name="fc1.weight"))
    return StepGraph(ops=ops, values=values, leaves=leaves, losses=(4,), faithful=True)
