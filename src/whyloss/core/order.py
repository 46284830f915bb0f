"""Which gradients an update uses, from the order of calls that led to it."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from whyloss.core.run import Call, Trace


@dataclass(frozen=True)
class Lost:
    """Gradients of the very line of code that the update uses, computed and cleared before it."""

    gradients: int  # the median over the updates that lost some
    share: float  # of the updates that lost some
    backward: Call
    clear: Call


def thrown_away(trace: Trace) -> Lost | None:
    """What was cleared before the updates; None where nothing was, or the order was not seen.

    Other optimizers' calls are not in a trace's order. Gradients of another line (an attack, the first pass of a
    sharpness-aware step) were not meant for the update. A closure runs within the step, and is left out.
    """
    index, backwards = trace.signal("order"), trace.signal("backwards")
    if index is None or not len(index.finite):
        return None
    kept = index.finite.values.astype(int)
    counts = [_cleared(order) for order in trace.orders]
    lost = np.array([counts[i] if 0 <= i < len(counts) else 0 for i in kept])
    if not lost.any():
        return None
    order = max(trace.orders, key=_cleared)
    gradients = float(np.median(lost[lost > 0]))
    if backwards is not None and len(backwards) and not _accumulates(order):  # a long order is cut short in the journal
        gradients = max(gradients, float(np.median(backwards.values)) - 1)
    backward = next(c for c in order if c.what == "backward")
    clear = next(c for c in order if c.what == "zero_grad")
    return Lost(int(gradients), float(np.mean(lost > 0)), backward, clear)


def _before_step(order: tuple[Call, ...]) -> tuple[Call, ...]:
    names = [c.what for c in order]
    return order[: names.index("step")] if "step" in names else order


def _accumulates(order: tuple[Call, ...]) -> bool:
    """Whether two backward passes follow each other without a zero_grad between them."""
    names = [c.what for c in _before_step(order) if c.what in ("zero_grad", "backward")]
    return any(a == b == "backward" for a, b in pairwise(names))


def _cleared(order: tuple[Call, ...]) -> int:
    """Backward calls whose gradients were cleared before the step, of the line whose gradients the step used."""
    before = _before_step(order)
    lines = [(c.file, c.line) for c in before if c.what == "backward"]
    count = since = 0
    for call in before:
        if call.what == "zero_grad":
            count, since = count + since, 0
        elif call.what == "backward":
            since += (call.file, call.line) == lines[-1]
    return count
