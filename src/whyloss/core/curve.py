"""The shape of a curve, by medians over blocks: blind to single samples, fit for twenty points as for a million."""

import re
from dataclasses import dataclass

import numpy as np

from whyloss.core.feed import eval_loss_name
from whyloss.core.progress import ERRORS
from whyloss.core.run import Run
from whyloss.core.series import Floats, Series, Steps, noise

BLOCKS = 24
LOSS = re.compile(r"loss|nll|cross_?entropy|mse|mae|rmse|perplexity|ppl|bpc", re.IGNORECASE)
EVAL = re.compile(r"val|eval|test|dev|held", re.IGNORECASE)


@dataclass(frozen=True, eq=False)
class Curve:
    """Medians of consecutive blocks of samples. `error`: standard error of one of them, from the noise of samples."""

    steps: Steps  # the last step of each block
    levels: Floats
    error: float
    noise: float

    @property
    def lowest(self) -> int:
        """The block with the lowest level."""
        return int(np.argmin(self.levels))

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
    scatter = noise(finite.values)
    width = len(finite) / count
    error = scatter * np.sqrt(np.pi / 2 / max(width, 1.0))
    return Curve(np.array([finite.steps[p[-1]] for p in parts]), levels, float(error), scatter)


def still_falling(c: Curve) -> bool:
    """Whether the last third goes on down: beyond its noise, and by a twentieth of all that was gained."""
    last = c.part(2 / 3)
    half = max(len(last) // 2, 1)
    drop = float(np.mean(last[:half]) - np.mean(last[-half:]))
    gained = float(c.levels[0] - c.levels.min())
    return gained > 0 and drop > max(ERRORS * c.error / np.sqrt(half), 0.05 * gained)


def level_at_end(c: Curve) -> float:
    """Median of the last sixth."""
    return float(np.median(c.part(5 / 6)))


def evaluation_losses(run: Run) -> dict[str, Series]:
    """The losses on held-out data: those that the script logged under a name that says so, and those that were seen
    while it evaluated examples that it did not train on."""
    named = {
        n: s for n, s in run.metrics.items() if LOSS.search(n) and EVAL.search(n) and not n.startswith("loss/eval[")
    }
    seen = {eval_loss_name(e.index): e for e in run.evaluations if e.held_out}
    return named | {name: run.metrics[name] for name in seen if name in run.metrics}
