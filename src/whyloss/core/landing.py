"""Do updates reach the weights, and stay? From the norms of gradients, updates and weights at the observed updates."""

from dataclasses import dataclass

import numpy as np

from whyloss.core.reach import Tensors
from whyloss.core.run import Tensor, Trace
from whyloss.core.series import Floats

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
ALIKE = 0.01  # of one update: how far a norm may wander in many updates that are all taken back


@dataclass(frozen=True)
class Landing:
    """Trained tensors that had a rate and a gradient above 0 at `rows` observed updates."""

    still: Tensors  # changed by none of these updates, although the smallest was large enough for their precision
    moving: Tensors  # changed by some
    unclear: Tensors  # changed by none; rounding could be the reason
    rows: int


def landing(trace: Trace, rows: int) -> Landing:
    """Sorts the trained tensors that had at least `rows` such updates."""
    sorts: dict[str, list[Tensor]] = {"still": [], "moving": [], "unclear": []}
    fewest = 0
    for t in trace.trained:
        grads, updates, rates = _due(trace, t)
        if len(updates) < rows:
            continue
        fewest = min(fewest, len(updates)) if fewest else len(updates)
        large = _step_bound(t, grads, rates) > _half_ulp(trace, t)
        kind = "moving" if (updates > 0.0).any() else "still" if large.sum() >= rows else "unclear"
        sorts[kind].append(t)
    return Landing(tuple(sorts["still"]), tuple(sorts["moving"]), tuple(sorts["unclear"]), fewest)


def taken_back(trace: Trace, rows: int) -> bool:
    """Whether no weight's norm, nor the spread of its rows, has another last bit before any observed update."""
    moving = landing(trace, rows).moving
    return bool(moving) and all(_spans(trace, t)[:2] == (0.0, 0.0) for t in moving)


def nearly_taken_back(trace: Trace, rows: int, small: int) -> bool:
    """Whether all norms stay within a hundredth of one update, where tensors of at most `small` values can show it.

    An update that stays changes a norm by its length over √n at least, and by more the more there are. A weight that is
    kept at one norm on purpose still turns, which the spread of its rows shows.
    """
    moving = landing(trace, rows).moving
    spans = [(t, *_spans(trace, t)) for t in moving]
    close = all(norm <= (ALIKE if t.size <= small else 1.0) and turn <= ALIKE for t, norm, turn in spans)
    return close and any(t.size <= small for t in moving)


def _due(trace: Trace, t: Tensor) -> tuple[Floats, Floats, Floats]:
    """Gradient norms, update norms and rates at the observed updates that had both a gradient and a rate."""
    names = (f"grad/norm[{t.name}]", f"update/norm[{t.name}]", f"lr[{t.group}]")
    found = [trace.signal(name) for name in names]
    if any(s is None for s in found):
        return (np.zeros(0),) * 3
    series = [s for s in found if s is not None]
    steps = series[1].steps
    grads, updates, rates = (s.values[np.isin(s.steps, steps)] if len(s) else s.values for s in series)
    if not len(grads) == len(updates) == len(rates):
        shared = np.intersect1d(np.intersect1d(series[0].steps, steps), series[2].steps)
        grads, updates, rates = (s.values[np.isin(s.steps, shared)] for s in series)
    due = np.isfinite(grads) & np.isfinite(updates) & (grads > 0.0) & (rates > 0.0)
    return grads[due], updates[due], rates[due]


def _step_bound(t: Tensor, grads: Floats, rates: Floats) -> Floats:
    """A step that some value must take at least: rate times the root mean square of the gradient, or times 1."""
    return np.asarray(rates * np.minimum(grads / np.sqrt(max(t.size, 1)), 1.0))


def _half_ulp(trace: Trace, t: Tensor) -> float:
    """Half of the distance between the largest value and its neighbour; smaller values have nearer ones."""
    weights = trace.signal(f"weight/norm[{t.name}]")
    norm = float(np.max(weights.values)) if weights is not None else np.inf
    largest = t.largest if t.largest is not None else norm
    return 0.5 * EPSILON.get(t.dtype, EPSILON["bfloat16"]) * largest


def _spans(trace: Trace, t: Tensor) -> tuple[float, float]:
    """How far the norm of a weight and the spread of its rows wandered, both in updates of typical length."""
    norms, updates = trace.signal(f"weight/norm[{t.name}]"), trace.signal(f"update/norm[{t.name}]")
    if norms is None or updates is None or len(norms) < 2:
        return np.inf, np.inf
    update = float(np.median(updates.values))
    spread = trace.signal(f"rows/spread[{t.name}]")
    turn = float(np.ptp(spread.values)) * float(np.median(norms.values)) if spread is not None else 0.0
    return (float(np.ptp(norms.values)) / update, turn / update) if update > 0.0 else (np.inf, np.inf)
