"""Along which axis a call makes probabilities, and what a loss can still reach that is given them as logits."""

import math

from whyloss.core.step_graph import Op, StepGraph

PROBABILITIES = frozenset(("softmax", "softmin", "gumbel_softmax"))
SOFTMAXES = PROBABILITIES | {"log_softmax"}
UNCHANGED = frozenset(("clamp", "clip", "nan_to_num", "dropout"))  # what leaves probabilities what they are
SIGMOIDS = frozenset(("sigmoid", "hardsigmoid", "expit"))


def axis_of(graph: StepGraph, op: Op) -> int | None:
    """Of a softmax, counted from the front. Where no axis is given torch takes the first of one or three, else the
    second. None for a scalar."""
    axes = len(graph.values[op.inputs[0]].shape) if op.inputs else 0
    if not axes:
        return None
    given = op.arguments.get("dim", -1 if op.kind == "gumbel_softmax" else None)
    given = given if isinstance(given, int) else (0 if axes in (1, 3) else 1)
    axis = given + axes if given < 0 else given
    return axis if 0 <= axis < axes else None


def over_batch(graph: StepGraph, op: Op) -> bool:
    """Whether it is along the first of several axes."""
    return len(graph.values[op.inputs[0]].shape) > 1 and axis_of(graph, op) == 0


def classes_axis(shape: tuple[int, ...]) -> int:
    """Of the prediction of a cross-entropy: [N, C, …] or [C]."""
    return 1 if len(shape) > 1 else 0


def softmax_floor(classes: int) -> float:
    """The least cross-entropy of logits that lie in [0, 1] and sum to 1: ln(1 + (C − 1)/e)."""
    return math.log(1 + (classes - 1) / math.e)


def sigmoid_floor(positive: float) -> float:
    """The least binary cross-entropy of logits that lie in [0, 1], for that share of positive targets."""
    return positive * math.log(1 + 1 / math.e) + (1 - positive) * math.log(2)
