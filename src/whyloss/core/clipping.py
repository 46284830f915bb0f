"""The two ways of clipping a gradient, as plain arithmetic on float64."""

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.series import Floats


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
