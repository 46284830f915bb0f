"""The shape of a curve, by medians over blocks: blind to single samples, fit for twenty points as for a million."""

from dataclasses import dataclass

import numpy as np

from whyloss.core.progress import ERRORS
from whyloss.core.series import Floats, Series, Steps, noise

BLOCKS = 24


@dataclass(frozen=True, eq=False)
class Curve:
    """Medians of consecutive blocks of samples. `error`: standard error of one of them, from the noise of samples."""

    steps: Steps  # the last step of each block
    levels: Floats
    error: float
    samples: int

    def part(self, low: float, high: float = 1.0) -> Floats:
        """The levels between two shares of the run; one at least."""
        n = len(self.levels)
        first = min(round(low * n), n - 1)
        return self.levels[first : max(round(high * n), first + 1)]


def curve(series: Series, blocks: int = BLOCKS) -> Curve | None:
    """None for fewer than six finite samples."""
    finite = series.finite
    if len(finite) < 6:
        return None
    count = min(blocks, max(len(finite) // 2, 4))
    parts = np.array_split(np.arange(len(finite)), count)
    levels = np.array([np.median(finite.values[p]) for p in parts])
    width = len(finite) / count
    error = noise(finite.values) * np.sqrt(np.pi / 2 / max(width, 1.0))
    return Curve(np.array([finite.steps[p[-1]] for p in parts]), levels, float(error), len(finite))


def fall_at_end(c: Curve) -> float:
    """From the first half of the last third to its second half: what the last sixth has gained."""
    last = c.part(2 / 3)
    half = max(len(last) // 2, 1)
    return float(np.mean(last[:half]) - np.mean(last[-half:]))


def still_falling(c: Curve) -> bool:
    """Whether the last third goes on down: beyond its noise, and by a twentieth of all that was gained."""
    half = max(len(c.part(2 / 3)) // 2, 1)
    gained = float(c.levels[0] - c.levels.min())
    return gained > 0 and fall_at_end(c) > max(ERRORS * c.error / np.sqrt(half), 0.05 * gained)


def level_at_end(c: Curve) -> float:
    """Median of the last sixth."""
    return float(np.median(c.part(5 / 6)))
