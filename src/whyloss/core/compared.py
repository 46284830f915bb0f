"""What the loss of a step compares: by a function of torch, or written by hand: `((model(x) - y) ** 2).mean()`,
`-log_p.gather(1, y).mean()`."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.step_graph import Leaf, Op, StepGraph
from whyloss.core.terms import DIFFERENCES

SUBTRACTIONS = DIFFERENCES | {"rsub"}


@dataclass(frozen=True)
class Pair:
    """A call that compares, the numbers of its prediction and its target, and the leaf that the target comes from."""

    op: Op
    prediction: int
    target: int
    leaf: Leaf


def pairs(graph: StepGraph) -> tuple[Pair, ...]:
    """Of each loss function of torch, where its target is data and not made by the step itself; of a loss that is
    written by hand, where it says what it compares."""
    return tuple(_of_torch(graph)) or tuple(_by_hand(graph))


def _of_torch(graph: StepGraph) -> Iterator[Pair]:
    for op in graph.loss_ops:
        number, leaf = graph.target(op), graph.target_of(op)
        if number is not None and isinstance(leaf, Leaf) and leaf.role in ("target", "input"):
            yield Pair(op, graph.prediction(op), number, leaf)


def _by_hand(graph: StepGraph) -> Iterator[Pair]:
    """In the calls after the last module: differences between a prediction and a target of one shape, and what is
    picked from predictions by whole numbers. Nothing where a loss function of torch is used."""
    targets = {leaf.value: leaf for leaf in graph.leaves if leaf.role == "target"}
    for op in graph.tail if not graph.loss_ops else ():
        given = [n for n in op.inputs if n in targets]
        others = [n for n in op.inputs if graph.values[n].requires_grad]
        if len(op.inputs) != 2 or len(given) != 1 or len(others) != 1:
            continue
        value, target = graph.values[others[0]], graph.values[given[0]]
        difference = op.kind in SUBTRACTIONS and value.shape == target.shape
        picked = op.kind == "gather" and not target.floating
        if difference or picked:
            yield Pair(op, others[0], given[0], targets[given[0]])
