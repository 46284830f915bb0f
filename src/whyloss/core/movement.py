"""How far updates move the weights: ‖Δθ‖ / ‖θ‖ of each weight, and the middle one of them."""

import numpy as np

from whyloss.core.run import Tensor, Trace
from whyloss.core.series import Series


def weights(trace: Trace) -> tuple[Tensor, ...]:
    """The weights to judge a rate by: trained, at least two dimensions, not all zero at the start.

    Where there is none, as in a model of bare vectors, every trained tensor that was not zero at the start.
    """
    trained = [t for t in trace.trained if t.largest is None or t.largest > 0.0]
    return tuple([t for t in trained if len(t.shape) > 1] or trained)


def ratios(trace: Trace, tensors: tuple[Tensor, ...]) -> Series | None:
    """The median over `tensors` of ‖Δθ‖ / ‖θ‖, at each observed update. None: never observed."""
    steps, update = trace.matrix("update/norm", tensors)
    at, weight = trace.matrix("weight/norm", tensors)
    if not update.size or update.shape != weight.shape or not np.array_equal(steps, at):
        return None
    with np.errstate(all="ignore"):
        ratio = np.where(weight > 0.0, update / weight, np.nan)
    seen = np.isfinite(ratio).any(axis=1)
    if not seen.any():
        return None
    return Series.of([float(np.median(r[np.isfinite(r)])) for r in ratio[seen]], steps[seen])


def travelled(trace: Trace, ratio: Series) -> float:
    """The sum of the ratios over all updates, those between two observed ones interpolated: no weight can have moved
    further than that share of its norm."""
    return float(np.interp(np.arange(trace.updates), ratio.steps, ratio.values).sum())
