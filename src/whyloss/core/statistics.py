"""What is kept of a tensor's values without keeping the tensor."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Of all elements at one moment. NaN where there are none, or where a NaN is among them; complex: of |x|."""

    low: float
    high: float
    mean: float
    std: float  # of the population
    zeros: float  # share of the elements
    nonfinite: int  # elements
    distribution: bool = False  # every row along the last axis lies in [0, 1] and sums to 1
    integral: bool = False  # every element is a whole number
    scales: tuple[float, float] | None = None  # smallest and largest std of a column, for leaves of two axes
