"""What a loss that is written by hand compares: `((model(x) - y) ** 2).mean()`, `-log_p.gather(1, y).mean()`."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.step_graph import Leaf, Op, StepGraph
from whyloss.core.terms import DIFFERENCES


@dataclass(frozen=True)
class Compared:
    """A call that takes a prediction and a target, the numbers of both, and the leaf that the target is."""

    op: Op
    prediction: int
    target: int
    leaf: Leaf


def compared(graph: StepGraph) -> Iterator[Compared]:
    """In the calls after the last module: differences between a prediction and a target of one shape, and what is
    picked from predictions by whole numbers. Nothing where a loss function of torch is used."""
    targets = {leaf.value: leaf for leaf in graph.leaves if leaf.role == "target"}
    for op in graph.tail if not graph.loss_ops else ():
        given = [n for n in op.inputs if n in targets]
        others = [n for n in op.inputs if graph.values[n].requires_grad]
        if len(op.inputs) != 2 or len(given) != 1 or len(others) != 1:
            continue
        value, target = graph.values[others[0]], graph.values[given[0]]
        difference = op.kind in DIFFERENCES | {"rsub"} and value.shape == target.shape
        picked = op.kind == "gather" and not target.floating
        if difference or picked:
            yield Compared(op, others[0], given[0], targets[given[0]])
