"""How far updates move the weights: ‖Δθ‖ / ‖θ‖ of each weight, and the middle one of them."""

import numpy as np

from whyloss.core.run import Tensor, Trace
from whyloss.core.series import Floats, Series


def weights(trace: Trace) -> tuple[Tensor, ...]:
    """The weights to judge a rate by: trained, at least two dimensions, not all zero at the start.

    Where there is none, as in a model of bare vectors, every trained tensor that was not zero at the start; where that
    is none either, every trained one.
    """
    trained = [t for t in trace.trained if t.largest is None or t.largest > 0.0]
    return tuple([t for t in trained if len(t.shape) > 1] or trained or trace.trained)


def ratios(trace: Trace, tensors: tuple[Tensor, ...], above: str = "update/norm") -> Series | None:
    """The middle one over `tensors` (the lower of two) of ‖Δθ‖ / ‖θ‖, at each observed update; `above` may name
    another norm to hold against ‖θ‖. None: never observed."""
    at, weight = trace.matrix("weight/norm", tensors)
    steps, update = trace.matrix(above, tensors)
    if not update.size or not weight.size:
        return None
    steps, rows, others = np.intersect1d(steps, at, return_indices=True)
    update, weight = update[rows], weight[others]
    with np.errstate(all="ignore"):
        ratio = np.where(weight > 0.0, update / weight, np.nan)
    seen = np.isfinite(ratio).any(axis=1)
    if not seen.any():
        return None
    return Series.of([_lower_median(r[np.isfinite(r)]) for r in ratio[seen]], steps[seen])


def _lower_median(values: Floats) -> float:
    """Of an even number the lower one: with LoRA, half of the weights begin at zero and have no sensible ratio."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def travelled(trace: Trace, ratio: Series) -> float:
    """The sum of the ratios over all updates, those between two observed ones interpolated: no weight can have moved
    further than that share of its norm."""
    return float(np.interp(np.arange(trace.updates), ratio.steps, ratio.values).sum())


def rates(trace: Trace) -> list[Series]:
    """The rate of each parameter group that was seen."""
    return [r for g in range(trace.groups) if (r := trace.signal(f"lr[{g}]")) is not None]


def warming(trace: Trace) -> bool:
    """Whether a rate began at less than half of its highest value and is there only at the end."""
    return any(r.last >= 0.99 * r.high.max() and r.first < 0.5 * r.last for r in rates(trace))
