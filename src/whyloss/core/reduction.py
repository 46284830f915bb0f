"""How the loss of a recorded step was made one number: summed or averaged, over how many, and what it was scaled by."""

from dataclasses import dataclass
from math import prod

from whyloss.core.step_graph import LOSSES, RESHAPES, Op, StepGraph

DIVIDES = ("div", "divide", "true_divide", "truediv")
MULTIPLIES = ("mul", "multiply", "rmul")


@dataclass(frozen=True)
class Reduction:
    """`kind`: mean or sum. `examples`: along the first axis; `elements`: in all. `divisor`: what the result was divided
    by, in numbers that stand in the program."""

    op: Op
    kind: str
    examples: int
    elements: int
    divisor: float
    divided: Op | None = None  # the last call that did so


def reduction(graph: StepGraph) -> Reduction | None:
    """None where the loss has several terms, or is scaled by a tensor."""
    if len(graph.ends) != 1:
        return None
    op, divisor, divided = graph.ends[0], 1.0, None
    while True:
        found = _reduces(graph, op)
        if found is not None:
            kind, examples, elements = found
            return Reduction(op, kind, examples, elements, divisor, divided)
        factor = _factor(op)
        if factor is None or len(op.inputs) != 1:
            return None
        divisor, divided = divisor * factor, op if factor != 1 else divided
        before = graph.producers(op)[0]
        if not isinstance(before, Op):
            return None
        op = before


def _reduces(graph: StepGraph, op: Op) -> tuple[str, int, int] | None:
    if not op.inputs or not op.outputs or prod(graph.values[op.outputs[0]].shape) != 1:
        return None
    shape = graph.values[graph.prediction(op) if op.kind in LOSSES else op.inputs[0]].shape
    if op.kind in LOSSES:
        target = graph.target(op)
        counted = graph.values[target].shape if target is not None else shape
        kind = op.reduction or "mean"
        return (kind, shape[0] if shape else 1, prod(counted)) if kind in ("mean", "sum") else None
    if op.kind in ("mean", "sum") and prod(shape) > 1:
        return op.kind, shape[0], prod(shape)
    return None


def _factor(op: Op) -> float | None:
    """What the call divides by; 1 where it changes no value; None where it does anything else."""
    if op.kind in RESHAPES or op.kind in ("mean", "sum"):
        return 1.0
    other = op.arguments.get("other")
    if not isinstance(other, int | float) or isinstance(other, bool) or not other:
        return None
    if op.kind in DIVIDES:
        return float(other)
    return 1.0 / float(other) if op.kind in MULTIPLIES else None
