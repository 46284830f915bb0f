"""How much of the gradient bounded activations let through: their mean slope, which follows from mean and std alone.

The slope of a sigmoid is y(1 − y), of a tanh 1 − y². Both are functions of y, so the mean slope over all units and
examples is one of mean and mean square, whatever the distribution. As a share of the largest slope the two agree.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Place
from whyloss.core.run import Trace
from whyloss.core.series import Series
from whyloss.core.step_graph import Op, StepGraph

LIMITS = {
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "hardtanh": (-1.0, 1.0),
    "softsign": (-1.0, 1.0),
}  # the others are no steeper where they are near a limit: for them it is an upper bound, or nearly one
GATED = frozenset(("mul", "lerp", "where"))
ROUNDING = 1e-3


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """A bounded activation of a recorded step, and its mean slope at the updates at which that was seen."""

    op: Op
    slopes: Series
    hidden: bool  # layers with weights follow it

    @property
    def at_start(self) -> float:
        return self.slopes.first


def mean_slope(kind: str, mean: float, std: float) -> float | None:
    """As a share of the largest slope: 0 … 1. None where the values are not within the activation's limits, as of a
    hardtanh that has others, or not finite."""
    low, high = LIMITS[kind]
    half, middle = (high - low) / 2, (high + low) / 2
    slope = 1 - (std**2 + (mean - middle) ** 2) / half**2
    return max(slope, 0.0) if -ROUNDING <= slope <= 1 + ROUNDING else None


def bounded(trace: Trace) -> tuple[Bounded, ...]:
    """Those of the recorded steps, one a line and module; none whose result multiplies another one, as a gate's."""
    seen: dict[tuple[str, Place], list[tuple[StepGraph, Op, float]]] = {}
    for graph in trace.graphs:
        for op in graph.ops:
            slope = _slope(graph, op)
            if slope is not None and not _gates(graph, op):
                seen.setdefault((op.module, op.place), []).append((graph, op, slope))
    return tuple(_bounded(trace, found) for found in seen.values())


def _slope(graph: StepGraph, op: Op) -> float | None:
    if op.kind not in LIMITS or len(op.outputs) != 1:
        return None
    looks = graph.values[op.outputs[0]].statistics
    return mean_slope(op.kind, looks.mean, looks.std) if looks is not None else None


def _gates(graph: StepGraph, op: Op) -> bool:
    return any(user.kind in GATED for user in graph.users(op))


def _bounded(trace: Trace, found: list[tuple[StepGraph, Op, float]]) -> Bounded:
    """Where a call stands in a loop, the steepest of a step counts. What the sketch saw of its module goes on after."""
    graph, op, _ = found[0]
    steps = sorted({g.step for g, _, _ in found})
    slopes = {s: max(slope for g, _, slope in found if g.step == s) for s in steps}
    slopes |= dict(_sketched(trace, op, after=steps[-1]))
    return Bounded(
        op=op,
        slopes=Series.of(list(slopes.values()), list(slopes)),
        hidden=graph.hidden(op),
    )


def _sketched(trace: Trace, op: Op, after: int) -> Iterator[tuple[int, float]]:
    module = trace.module(op.module)
    if module is None or module.kind.lower() != op.kind or len(module.slots) != 1:
        return
    mean, std = (trace.signal(f"activation/{part}[{module.slots[0]}]") for part in ("mean", "std"))
    if mean is None or std is None:
        return
    later = np.flatnonzero(mean.steps > after)
    for i in later if len(mean) == len(std) else ():
        slope = mean_slope(op.kind, float(mean.values[i]), float(std.values[i]))
        if slope is not None:
            yield int(mean.steps[i]), slope
