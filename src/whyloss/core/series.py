"""A series of samples over steps, and robust statistics of it."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Steps = NDArray[np.int64]

# A NaN in a journal is a NaN that the training produced. What was never looked at, and a gradient that is None,
# are two other things: each has a NaN of its own, told apart by its bits (R keeps NA apart in the same way).
NOT_OBSERVED_BITS = 0x7FF8_0000_0000_4E4F
ABSENT_BITS = 0x7FF8_0000_0000_4142
NOT_OBSERVED = float(np.array(NOT_OBSERVED_BITS, dtype=np.uint64).view(np.float64))
ABSENT = float(np.array(ABSENT_BITS, dtype=np.uint64).view(np.float64))


def not_observed(values: Floats) -> NDArray[np.bool_]:
    """True where nobody looked. `values` must be float64 as stored: arithmetic loses the mark."""
    return np.asarray(np.ascontiguousarray(values).view(np.uint64) == NOT_OBSERVED_BITS)


def absent(values: Floats) -> NDArray[np.bool_]:
    """True where a gradient was None. `values` must be float64 as stored: arithmetic loses the mark."""
    return np.asarray(np.ascontiguousarray(values).view(np.uint64) == ABSENT_BITS)


@dataclass(frozen=True, eq=False)
class Series:
    """Samples that were observed, in step order. A NaN or infinity in `values` came from the training itself.

    Where a long run was thinned, a sample is of several steps: `values` their mean, `low` and `high` their range.
    """

    steps: Steps
    values: Floats
    low: Floats
    high: Floats

    @classmethod
    def of(cls, values: ArrayLike, steps: ArrayLike | None = None) -> Self:
        v = np.asarray(values, dtype=np.float64)
        s = np.arange(len(v)) if steps is None else np.asarray(steps)
        return cls(s.astype(np.int64), v, v, v)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def first(self) -> float:
        return float(self.values[0])

    @property
    def last(self) -> float:
        return float(self.values[-1])

    @property
    def finite(self) -> "Series":
        """Only the samples whose whole range is finite."""
        return self._where(np.isfinite(self.low) & np.isfinite(self.high))

    def since(self, step: int) -> "Series":
        return self._where(self.steps >= step)

    def until(self, step: int) -> "Series":
        return self._where(self.steps <= step)

    def _where(self, keep: NDArray[np.bool_]) -> "Series":
        return Series(self.steps[keep], self.values[keep], self.low[keep], self.high[keep])


def first_nonfinite(series: Series) -> int | None:
    """The first step with a NaN or infinity, or None."""
    bad = ~(np.isfinite(series.low) & np.isfinite(series.high))
    return int(series.steps[bad][0]) if bad.any() else None


def noise(values: Floats) -> float:
    """Standard deviation of the sample-to-sample noise, blind to a trend: 1.4826 · MAD of the differences / √2.

    0.0 for fewer than three values. Rousseeuw & Croux 1993 for the constant.
    """
    if len(values) < 3:
        return 0.0
    jumps = np.diff(values)
    return float(1.4826 * np.median(np.abs(jumps - np.median(jumps))) / np.sqrt(2))


@dataclass(frozen=True)
class Fall:
    """How a series went from its start to its end: medians of the first and last tenth (3 to 50 samples each)."""

    start: float
    end: float
    lowest: float
    noise: float
    width: int

    @property
    def drop(self) -> float:
        return self.start - self.end

    @property
    def error(self) -> float:
        """Standard error of `drop`, from the sample-to-sample noise."""
        return float(self.noise * np.sqrt(2 * np.pi / 2 / max(self.width, 1)))


def fall(series: Series) -> Fall | None:
    """The fall of a series over the whole run; None for fewer than six finite samples.

    `lowest` is the lowest median of `width` consecutive samples anywhere.
    """
    values = series.finite.values
    if len(values) < 6:
        return None
    width = int(np.clip(len(values) // 10, 3, 50))
    blocks = [float(np.median(values[i : i + width])) for i in range(0, len(values) - width + 1, max(1, width // 2))]
    end = float(np.median(values[-width:]))
    return Fall(float(np.median(values[:width])), end, min([*blocks, end]), noise(values), width)
