"""Steps that are too small for the numbers they are added to."""

import math
from dataclasses import dataclass

import numpy as np

from whyloss.core.landing import EPSILON
from whyloss.core.run import Tensor, Trace

NORMED = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion")  # a step of about the rate, whatever the gradient


@dataclass(frozen=True)
class Step:
    """What the values of a tensor were to change by, beside what they can."""

    typical: float  # the longest that the settings allow on average
    half: float  # half of the distance from a value of typical size to its neighbour
    way: float  # of all updates together, in such distances
    relative: float  # the same in typical values


def step_of(trace: Trace, tensor: Tensor) -> Step | None:
    """None where the optimizer's step can't be told from rate and gradient."""
    weight, rate = trace.signal(f"weight/norm[{tensor.name}]"), trace.signal(f"lr[{tensor.group}]")
    grad = trace.signal(f"grad/norm[{tensor.name}]")
    if weight is None or rate is None or grad is None or not len(weight.finite) or not len(grad.finite):
        return None
    root = max(tensor.size, 1) ** 0.5
    value = float(np.median(weight.finite.values)) / root
    unit = _unit(trace, float(np.median(grad.finite.values)) / root)
    if unit is None or not 0.0 < value < math.inf:
        return None
    gap = EPSILON.get(tensor.dtype, EPSILON["float32"]) * 2.0 ** math.floor(math.log2(value))
    total = unit * float(np.interp(np.arange(trace.updates), rate.steps, rate.values).sum())
    return Step(unit * float(np.median(rate.values)), 0.5 * gap, total / gap, total / value)


def _unit(trace: Trace, gradient: float) -> float | None:
    """The step of a typical value in units of the rate."""
    if trace.optimizer in NORMED:
        return 1.0
    if trace.optimizer != "SGD":
        return None
    momentum = trace.settings.get("momentum")
    return gradient / (1 - momentum) if isinstance(momentum, float) and 0.0 <= momentum < 1.0 else gradient
