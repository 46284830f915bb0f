"""The two ways of clipping a gradient, as plain arithmetic on float64; and what was recorded of it in a run."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.order import late_clip, scaled_clip, share_of_updates
from whyloss.core.run import Trace
from whyloss.core.series import Floats, Series


def clip_by_norm(gradient: ArrayLike, limit: float) -> Floats:
    """The whole vector scaled to at most `limit` in Euclidean norm; its direction stays.

    Raises ValueError for a non-finite gradient: no scaling makes it finite.

    >>> clip_by_norm([3.0, 4.0], 2.0).round(2).tolist()
    [1.2, 1.6]
    >>> clip_by_norm([6.0, 8.0], 5.0).tolist()
    [3.0, 4.0]
    """
    g = _finite(gradient)
    norm = float(np.linalg.norm(g))
    return g if norm <= limit else g * (limit / norm)


def clip_by_value(gradient: ArrayLike, limit: float) -> Floats:
    """Each coordinate held to [-limit, limit] on its own; the direction changes.

    >>> clip_by_value([6.0, 8.0], 5.0).tolist()
    [5.0, 5.0]
    """
    return np.clip(_finite(gradient), -limit, limit)


def _finite(gradient: ArrayLike) -> Floats:
    g = np.asarray(gradient, dtype=np.float64)
    if not np.isfinite(g).all():
        msg = f"gradient {g.tolist()} is not finite: clipping cannot repair it; find the operation that produced it"
        raise ValueError(msg)
    return g


@dataclass(frozen=True)
class Clipping:
    """The limits at the updates that had one, and the norm that each was held against."""

    by_value: bool
    limits: Floats
    norms: Floats  # by value: of what the limit left of the gradient

    @property
    def finite(self) -> bool:
        """Not so for max_norm=inf, a measurement."""
        return len(self.limits) > 0 and bool(np.isfinite(self.limits).all())

    @property
    def bitten(self) -> float:
        """The share of the updates at which the limit took something away; by value, at which a gradient whose elements
        were all at a tenth of the limit would be shorter."""
        finite = np.isfinite(self.norms)
        return float(np.mean(self.norms[finite] > self.limits[finite])) if finite.any() else 0.0


def clipping(trace: Trace, against: Series | None = None) -> Clipping | None:
    """None where nothing was clipped. `against`: another norm than that of what was clipped."""
    by_value = trace.signal("clip/limit") is None
    limit = trace.signal("clip/value" if by_value else "clip/limit")
    norm = against or trace.signal("grad/total" if by_value else "clip/norm")
    if limit is None or norm is None:
        return None
    _, at, where = np.intersect1d(limit.steps, norm.steps, return_indices=True)
    limits = limit.values[at]
    if by_value:
        limits = 0.1 * limits * np.sqrt(sum(t.size for t in trace.trained))
    return Clipping(by_value, limits, norm.values[where])


def unclipped(trace: Trace) -> Series | None:
    """The norm of the gradient before clipping, without the scale of a loss scaler: of each update that was clipped
    where any was. A clipping that comes after the step saw another gradient, or none."""
    clipped, total, scale = trace.signal("clip/norm"), trace.signal("grad/total"), trace.signal("scale")
    if clipped is None or (share_of_updates(trace, lambda order: late_clip(order) is not None, since=1) or 0.0) > 0.5:
        return total
    if scale is None or not (share_of_updates(trace, lambda order: scaled_clip(order) is not None) or 0.0) > 0.5:
        return clipped
    by = np.interp(clipped.steps, scale.steps, scale.values)
    return Series(clipped.steps, clipped.values / by, clipped.low / by, clipped.high / by)
