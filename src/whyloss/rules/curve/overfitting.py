"""overfitting."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.curve import evaluation_losses
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.levels import own_loss
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Series, noise
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class Overfitting(Rule):
    """The loss on held-out data rises while the training loss goes on falling.

    ## What it detects
    An evaluation series whose level at the end is above its lowest by more than `share` of it and by more than its own
    noise, reached after the training loss had fallen by `gained` more since that lowest point.
    ## Why it matters
    What is learned since then holds for the training examples alone: the model gets worse at what it is for.
    ## What else looks like this
    A noisy evaluation; a training loss that rises, too (that is divergence); a run without held-out data, of which
    nothing can be said. A cross-entropy may rise by overconfidence while the accuracy still improves: look at both.
    ## What to do
    Stop at the lowest evaluation loss, or keep that checkpoint. Then: more data or augmentation, weight decay, dropout,
    a smaller model.
    """

    name = "overfitting"
    boundary = Boundary.CURVE
    explained_by = ("duplicate-batches", "labels-uninformative")
    change = "Keep the checkpoint of the lowest evaluation loss; add data, augmentation, weight decay or dropout."
    verify = "Run again: the evaluation loss ends near its lowest value."

    share: float = threshold(
        0.1, unit="of the lowest", why="healthy evaluations wander by up to a twentieth at the end"
    )
    gained: float = threshold(
        0.1, unit="of the training loss", why="a loss that no longer falls memorises nothing more"
    )
    points: int = threshold(5, unit="evaluations", why="fewer points show no turn")
    noises: float = threshold(3.0, unit="deviations of the noise", why="one in a thousand by chance")

    def check(self, run: Run) -> Iterator[Outcome]:
        series = {n: s.finite for n, s in evaluation_losses(run).items() if len(s.finite) >= self.points}
        train = _training(run)
        if not series or train is None:
            yield self.skipped(f"can't be told without {self.points} losses on held-out data")
            return
        found = [f for name, s in series.items() if (f := self._judge(run, train, name, s)) is not None]
        yield from found[:1]
        if not found:
            name, s = next(iter(series.items()))
            yield self.passed(f"{name} ends at {s.last:.4g}, its lowest is {s.values.min():.4g}")

    def _judge(self, run: Run, train: Series, name: str, s: Series) -> Finding | None:
        smooth = np.median(np.lib.stride_tricks.sliding_window_view(s.values, 3), axis=1)
        turn = int(np.argmin(smooth))
        lowest, end = float(smooth[turn]), float(np.median(s.values[-max(len(s) // 5, 2) :]))
        scatter = noise(s.values)
        if turn >= 0.8 * len(smooth) or end - lowest <= max(self.share * abs(lowest), self.noises * scatter):
            return None
        then, now = _level(train, int(s.steps[turn + 1])), _level(train, int(s.steps[-1]))
        if not now < (1 - self.gained) * then:
            return None
        return self.finding(
            f"{name} rose from {lowest:.4g} to {end:.4g} while the training loss fell from {then:.4g} to {now:.4g}",
            Evidence(
                f"{name} at the end", end, (1 + self.share) * lowest, "", (int(s.steps[turn + 1]), int(s.steps[-1]))
            ),
            Evidence("training loss meanwhile", now, (1 - self.gained) * then),
            severity=Severity.WARNING,
            place=run.traces[0].step_place if run.traces else None,
            first_step=int(s.steps[turn + 1]),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(10, 200, 10)

        def run(values: ArrayLike, name: str = "val_loss", **sample: Any) -> Run:
            return replace(sample_run(**sample), metrics={name: Series.of(values, steps)})

        down, up = np.geomspace(2.0, 0.8, 7), np.linspace(0.8, 2.2, 12)
        wobble = 0.4 + 0.03 * np.sin(steps)
        return (
            fires("the evaluation turns at a third", run(np.r_[down, up]), Severity.WARNING),
            silent("near miss: both fall", run(np.geomspace(2.0, 0.4, 19))),
            silent("near miss: a noisy level", run(np.r_[down, wobble[7:] * 2])),
            silent(
                "near miss: the training loss rises, too",
                run(np.r_[down, up], loss=np.r_[falling(70), falling(130, 0.3, 4.0)]),
            ),
            silent("near miss: an accuracy", run(np.r_[down, up], name="val_accuracy")),
            silent("near miss: no evaluation", sample_run()),
        )


def _training(run: Run) -> Series | None:
    for trace in run.traces:
        own = own_loss(trace)
        loss = own if own is not None else trace.loss
        if loss is not None and len(loss.finite):
            return loss.finite
    return None


def _level(train: Series, step: int) -> float:
    """Median of the losses around a step."""
    width = max(len(train) // 40, 5)
    at = int(np.searchsorted(train.steps, step, "right"))
    return float(np.median(train.values[max(at - width, 0) : max(at, 1)]))
