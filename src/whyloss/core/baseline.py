"""The loss of a predictor that ignores its input."""

import math

import numpy as np
from numpy.typing import ArrayLike


def uniform_cross_entropy(classes: int) -> float:
    """ln C: the cross-entropy, in nats, of uniform predictions over C classes.

    >>> round(uniform_cross_entropy(10), 4)
    2.3026
    """
    return math.log(classes)


def label_entropy(counts: ArrayLike) -> float:
    """Entropy in nats of the label distribution: the best cross-entropy that a constant prediction can reach.

    `counts`: how often each class was seen; all zero gives 0.0.

    >>> round(label_entropy([50, 50]), 4), label_entropy([9, 0])
    (0.6931, 0.0)
    """
    n = np.asarray(counts, dtype=np.float64)
    shares = n[n > 0] / n.sum() if n.sum() else n[:0]
    return float(-(shares * np.log(shares)).sum()) + 0.0
