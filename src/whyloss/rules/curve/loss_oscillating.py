"""loss-oscillating."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.curve import curve
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

BLOCKS = 60


@dataclass(frozen=True)
class LossOscillating(Rule):
    """The loss swings up and down again and again, far beyond its noise.

    ## What it detects
    In the later two thirds of the run, levels of the loss (medians of sixty blocks) turn at least `turns` times with
    swings above `swing` of all that was gained, and above ten standard errors of a level.
    ## Why it matters
    The steps overshoot: what one stretch of the training wins, the next one loses.
    ## What else looks like this
    Warm restarts of the rate, whose swings follow the rate: not reported. Noise from batch to batch is no swing of
    levels. Two optimizers that play against each other, and policy gradients: not judged.
    ## What to do
    Lower the rate or the momentum; shuffle the data if swings have the period of an epoch.
    """

    name = "loss-oscillating"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ("lr-too-high", "unshuffled-data", "optimizer-recreated", "input-unscaled", "batchnorm-tiny-batch")
    change = "Lower the rate (a third) or the momentum; shuffle the data."
    verify = "Run again with a third of the rate: the swings are gone."

    turns: int = threshold(6, unit="turns", why="a bump or two have other reasons")
    swing: float = threshold(0.1, unit="of what was gained", why="levels of healthy runs wandered by a thirtieth")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            shape = (
                curve(trace.loss, BLOCKS) if trace.loss is not None and len(trace.loss.finite) >= 4 * BLOCKS else None
            )
            reason = says_nothing(run, trace)
            if reason or shape is None:
                yield self.skipped(reason or f"needs the loss of {4 * BLOCKS} updates")
                continue
            levels = shape.part(1 / 3)
            gained = float(shape.levels[0] - shape.levels.min())
            swings = _swings(levels, max(self.swing * gained, 10 * shape.error))
            if gained <= 0 or len(swings) < self.turns or _rate_swings(trace.signal("lr[0]")):
                yield self.passed(f"the levels of the loss turn {len(swings)} times by more than their noise")
                continue
            size = float(np.median(np.abs(swings)))
            yield self.finding(
                f"the loss swings {len(swings)} times by about {size:.3g}, {size / gained:.0%} of all that was gained",
                Evidence("swing of the level, median", size, self.swing * gained),
                Evidence("turns", len(swings), self.turns),
                severity=Severity.WARNING,
                place=trace.step_place,
                first_step=int(shape.steps[len(shape.steps) // 3]),
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        t = np.arange(600)
        wave = falling(600) + 0.6 * (1 + np.sin(t / 12))
        rate = 1e-3 * (1 + np.cos(np.pi * (t % 75) / 75)) / 2
        return (
            fires("swings by half of what was gained", sample_run(loss=wave), Severity.WARNING),
            silent("near miss: a smooth fall", sample_run(loss=falling(600))),
            silent("near miss: noise of 30 %", sample_run(loss=falling(600, noise=0.3))),
            silent("near miss: warm restarts of the rate", sample_run(loss=wave, signals={"lr[0]": rate})),
            silent("near miss: one bump", sample_run(loss=falling(600) + np.exp(-(((t - 300) / 30.0) ** 2)))),
        )


def _swings(levels: np.ndarray, least: float) -> np.ndarray:
    """The moves between turning points that are larger than `least`, in order and alternating in sign."""
    found, low, high = [levels[0]], levels[0], levels[0]
    rising: bool | None = None
    for level in levels[1:]:
        low, high = min(low, level), max(high, level)
        if rising is not False and high - level > least:
            found.append(high)
            rising, low, high = False, level, level
        elif rising is not True and level - low > least:
            found.append(low)
            rising, low, high = True, level, level
    return np.diff(np.array(found))


def _rate_swings(rate: object) -> bool:
    """Whether the rate rises again, by half and more, at least twice."""
    values = getattr(rate, "values", np.zeros(0))
    rises = np.diff(values) > 0.5 * values.max() if len(values) else np.zeros(0, dtype=bool)
    lows = len(_swings(values, 0.5 * values.max())) if len(values) else 0
    return bool(rises.sum() >= 2) or lows >= 3
