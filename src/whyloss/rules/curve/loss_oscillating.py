"""loss-oscillating."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whyloss.core.curve import curve
from whyloss.core.feed import Fed
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Floats, Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

BLOCKS = 60
LAGS = 20  # samples over which a wave must repeat
MOST = 5000  # samples at the end that are looked at one by one


@dataclass(frozen=True)
class LossOscillating(Rule):
    """The loss swings up and down again and again, far beyond its noise.

    ## What it detects
    In the later two thirds of the run the loss turns up at least `turns` times; the middle rise is above `swing` of
    the level it rises from and above `least` of all that was gained, and together they are more than all that was
    gained. Where every update is given the same, whole data, single losses are looked at, if they hang together (an
    autocorrelation above `together`); else medians of sixty blocks, whose turns must be beyond ten of their errors.
    ## Why it matters
    The steps overshoot: what one stretch of the training wins, the next one loses.
    ## What else looks like this
    Harder and easier batches in turn, as of sorted data or a target network, swing just so: it is an alarm only where
    every update had the same data, for then nothing but the steps can raise the loss; else an info. Warm restarts of
    the rate, whose swings follow the rate; ripples near 0; noise from batch to batch; two optimizers that play against
    each other, and policy gradients: not reported.
    ## What to do
    Lower the rate or the momentum; shuffle the data if swings have the period of an epoch.
    """

    name = "loss-oscillating"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ("lr-too-high", "unshuffled-data", "optimizer-recreated", "input-unscaled", "batchnorm-tiny-batch")
    change = "Lower the rate (a third) or the momentum; shuffle the data."
    verify = "Run again with a third of the rate: the swings are gone."

    turns: int = threshold(6, unit="rises", why="a bump or two have other reasons")
    swing: float = threshold(0.3, unit="of the level", why="ripples at the edge of stability are a hundredth of it")
    together: float = threshold(0.5, unit="correlation", why="noise, as of dropout, has none: a tenth at most")
    least: float = threshold(
        0.02, unit="of what was gained", why="swings around a minimum, as of Adam, are far smaller"
    )
    total: float = threshold(1.0, unit="times what was gained", why="less than was ever won costs no more than time")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            loss, reason = trace.loss, says_nothing(run, trace)
            shape = curve(loss, BLOCKS) if loss is not None and len(loss.finite) >= 4 * BLOCKS else None
            if reason or loss is None or shape is None:
                yield self.skipped(reason or f"needs {4 * BLOCKS} samples of the loss")
                continue
            whole = _whole(run.fed) and _autocorrelation(_later(loss.finite)) > self.together
            low, high = self._single(loss.finite) if whole else _rises(_turning(shape.part(1 / 3), 10 * shape.error))
            gained = float(shape.levels[0] - shape.levels.min())
            total = float((high - low).sum())
            size = float(np.median(high - low)) if len(low) else 0.0
            limit = max(self.least * gained, self.swing * float(np.median(np.abs(low)))) if len(low) else 0.0
            lost = len(low) >= self.turns and total > self.total * gained > 0 and size > limit
            if not lost or _rate_swings(trace.signal("lr[0]")):
                yield self.passed(f"the loss turns up {len(low)} times beyond its noise, by {total:.3g} in all")
                continue
            same = ", though every update is given the same data" if whole else ""
            yield self.finding(
                f"the loss rises {len(low)} times by about {size:.3g}, {total / gained:.1f} times all it gained{same}",
                Evidence("all rises together", total, self.total * gained),
                Evidence("middle rise", size, limit),
                Evidence("rises", len(low), self.turns),
                severity=Severity.WARNING if whole else Severity.INFO,
                place=trace.loss_place,
                first_step=int(shape.steps[len(shape.steps) // 3]),
            )

    def _single(self, loss: Series) -> tuple[Floats, Floats]:
        low, high = _rises(_turning(np.log(_later(loss)), np.log1p(self.swing)))
        return np.exp(low), np.exp(high)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        t = np.arange(600)
        wave = falling(600, 2.3, 0.3, 0.0) * (1 + 0.8 * np.sin(t / 3.5))
        slow = falling(600) + 0.6 * (1 + np.sin(t / 9))
        rate = 1e-3 * (1 + np.cos(np.pi * (t % 75) / 75)) / 2

        low = np.r_[falling(200, 2.3, 5e-3, 0.0), 2e-2 * (1 + 0.8 * np.sin(t[200:] / 2))]

        def whole(**sample: Any) -> Run:
            return replace(sample_run(**sample), fed=Fed(passes=512, examples=512 * 200, distinct=200, size=200))

        return (
            fires("swings on one whole batch", whole(loss=wave), Severity.WARNING),
            fires(
                "the same slowly, from batch to batch", sample_run(loss=slow + 0.5 * (1 + np.sin(t / 9))), Severity.INFO
            ),
            fires("up and down at each update", whole(loss=wave * (1 + 0.5 * (-1.0) ** t)), Severity.WARNING),
            silent("near miss: dropout", whole(loss=np.abs(falling(600, 2.3, 0.3, 0.6)))),
            silent("near miss: a smooth fall", whole(loss=falling(600))),
            silent("near miss: noise of 30 %", whole(loss=falling(600, noise=0.3))),
            silent("near miss: ripples of 1 %", whole(loss=falling(600, 2.3, 0.3, 0.0) * (1 + 0.01 * np.sin(t / 2)))),
            silent("near miss: around a minimum", whole(loss=low)),
            silent("near miss: ripples near 0", whole(loss=falling(600, 2.3, 1e-4, 0.0) + 1e-4 * np.sin(t / 2))),
            silent("near miss: warm restarts of the rate", whole(loss=slow, signals={"lr[0]": rate})),
            silent("near miss: one bump", whole(loss=falling(600) + np.exp(-(((t - 300) / 30.0) ** 2)))),
        )


def _whole(fed: Fed | None) -> bool:
    """Whether each of many passes was given the same examples, all there are."""
    return fed is not None and fed.passes >= 20 and 1 < fed.distinct == fed.size == fed.examples / fed.passes


def _later(loss: Series) -> Floats:
    return np.asarray(loss.values[-min(len(loss) * 2 // 3, MOST) :])


def _autocorrelation(values: Floats) -> float:
    """How far deviations from the level around hang together over time, as a wave's do: the first one, of either sign,
    or the highest of the next. 0 where the losses are not all positive."""
    if len(values) < 4 * LAGS or values.min() <= 0:
        return 0.0
    level = np.median(np.lib.stride_tricks.sliding_window_view(values, 2 * LAGS + 1), axis=1)
    away = values[LAGS:-LAGS] / level - 1
    away = np.clip(away, *(np.median(away) + np.array([-5, 5]) * np.median(np.abs(away))))
    away = away - away.mean()
    power = float(away @ away)
    found = [float(away[k:] @ away[:-k]) / power for k in range(1, LAGS)] if power > 0 else [0.0]
    return max(abs(found[0]), *found[1:]) if len(found) > 1 else 0.0


def _turning(levels: Floats, least: float) -> Floats:
    """The first level, and the turning points between moves that are larger than `least`."""
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
    return np.array(found)


def _rises(turning: Floats) -> tuple[Floats, Floats]:
    """Where each rise begins and ends."""
    up = np.diff(turning) > 0
    return turning[:-1][up], turning[1:][up]


def _rate_swings(rate: Series | None) -> bool:
    """Whether the rate rises again, by half and more, at least twice."""
    if rate is None or not len(rate):
        return False
    values = rate.values
    jumps = np.diff(values) > 0.5 * values.max()
    return bool(jumps.sum() >= 2) or len(_turning(values, 0.5 * values.max())) >= 4
