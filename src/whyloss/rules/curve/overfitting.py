"""overfitting."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.evaluation import evaluation_losses, evaluation_scores
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.levels import baselines, own_loss, says_nothing
from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Floats, Series, noise
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class Overfitting(Rule):
    """The loss on held-out data rises while the training loss goes on falling.

    ## What it detects
    An evaluation series whose level at the end is above its lowest by more than `share` of it and by more than its own
    noise, reached after the training loss had fallen by `gained` more since that lowest point. An alarm where it lost
    again more than `lost` of what had been gained by then, since its first point or since the training began, and,
    where an accuracy on held-out data was logged and has not fallen, more than `confident` of it; else an info.
    ## Why it matters
    What is learned since then holds for the training examples alone: the model gets worse at what it is for.
    ## What else looks like this
    A noisy evaluation; a training loss that rises, too (that is divergence); a run without held-out data, of which
    nothing can be said. A cross-entropy may rise by overconfidence on the few examples that were wrong all along, while
    the accuracy still improves. Adversarial and policy-gradient losses are not judged.
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
    lost: float = threshold(
        0.05,
        unit="of what was gained",
        why="a drift after the last fall of the rate cost a healthy residual network 4 %",
    )
    confident: float = threshold(
        0.25, unit="of what was gained", why="the same by overconfidence alone: no more while the accuracy holds"
    )
    alike: float = threshold(10.0, unit="times", why="beyond it the two losses are not of one kind, a sum and a mean")
    points: int = threshold(5, unit="evaluations", why="fewer points show no turn")
    noises: float = threshold(3.0, unit="deviations of the noise", why="one in a thousand by chance")

    def check(self, run: Run) -> Iterator[Outcome]:
        series = {n: s.finite for n, s in evaluation_losses(run).items() if len(s.finite) >= self.points}
        train, reason = _training(run)
        if not series or train is None:
            yield self.skipped(reason or f"can't be told without {self.points} losses on held-out data")
            return
        found = [f for name, s in series.items() if (f := self._judge(run, train, name, s)) is not None]
        yield from sorted(found, key=lambda f: not f.severity.alarm)[:1]
        if not found:
            name, s = next(iter(series.items()))
            yield self.passed(f"{name} ends at {s.last:.4g}, its lowest is {s.values.min():.4g}")

    def _judge(self, run: Run, train: Series, name: str, s: Series) -> Finding | None:
        smooth = _smooth(s)
        turn = int(np.argmin(smooth))
        lowest, end = float(smooth[turn]), _end(s)
        rise = end - lowest
        if turn >= 0.8 * len(smooth) or rise <= max(self.share * abs(lowest), self.noises * noise(s.values)):
            return None
        turned = int(s.steps[turn + 1])
        then, now = _level(train, turned), _level(train, int(s.steps[-1]))
        if then - now <= self.gained * abs(then):
            return None
        gained = max(float(s.values[0]), self._began(run, train, then, lowest), lowest) - lowest
        limit = (self.confident if _holds(run, turned) else self.lost) * gained
        return self.finding(
            f"{name} rose from {lowest:.4g} to {end:.4g} while the training loss fell from {then:.4g} to {now:.4g}",
            Evidence(f"{name} at the end", end, lowest + limit, "", (turned, int(s.steps[-1]))),
            Evidence("training loss meanwhile", now, then - self.gained * abs(then)),
            severity=Severity.WARNING if rise > limit else Severity.INFO,
            place=run.traces[0].loss_place if run.traces else None,
            first_step=turned,
        )

    def _began(self, run: Run, train: Series, then: float, lowest: float) -> float:
        """The training loss before anything was learned, no more than that of a constant prediction; `lowest` where it
        is not of the evaluation's kind. The evaluation itself may begin late."""
        if not lowest / self.alike < then < lowest * self.alike:
            return lowest
        return min([_level(train, 0), *(baselines(trace)[0].value for trace in run.traces[:1] if baselines(trace))])

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(10, 200, 10)

        def run(values: ArrayLike, name: str = "val_loss", scores: ArrayLike | None = None, **sample: Any) -> Run:
            accuracy = {} if scores is None else {"val_accuracy": Series.of(scores, steps)}
            return replace(sample_run(**sample), metrics={name: Series.of(values, steps)} | accuracy)

        far = np.r_[300.0, 300.0, 300.0, 300.0, 300.0, falling(195)]
        down, up = np.geomspace(2.0, 0.8, 7), np.linspace(0.8, 2.2, 12)
        drift = np.linspace(0.8, 1.0, 12)
        wobble = 0.4 + 0.03 * np.sin(steps)
        better = np.linspace(0.3, 0.9, 19)
        return (
            fires("the evaluation turns at a third", run(np.r_[down, up]), Severity.WARNING),
            fires("the same, though the accuracy improves", run(np.r_[down, up], scores=better), Severity.WARNING),
            fires("a drift while the accuracy falls", run(np.r_[down, drift], scores=better[::-1]), Severity.WARNING),
            silent("near miss: a drift, and the accuracy improves", run(np.r_[down, drift], scores=better)),
            silent(
                "near miss: a drift by a thirtieth of what was gained before the first evaluation",
                run(np.r_[np.full(3, 0.13), np.linspace(0.12, 0.19, 16)]),
            ),
            fires("after a start far above the baseline", run(np.r_[down, up], loss=far), Severity.WARNING),
            fires("from a lowest loss of 0", run(np.r_[np.zeros(7), up], loss=far), Severity.WARNING),
            silent("near miss: both fall", run(np.geomspace(2.0, 0.4, 19))),
            silent("near miss: a noisy level", run(np.r_[down, wobble[7:] * 2])),
            silent("near miss: 0.02 back of 2", run(np.r_[np.geomspace(2.0, 0.03, 7), np.linspace(0.03, 0.05, 12)])),
            silent(
                "near miss: the training loss rises, too",
                run(np.r_[down, up], loss=np.r_[falling(70), falling(130, 0.3, 4.0)]),
            ),
            silent("near miss: an accuracy", run(np.r_[down, up], name="val_accuracy")),
            silent("near miss: a value function's loss", run(np.r_[down, up], name="value_loss")),
            silent("near miss: a policy gradient", run(np.r_[down, up], loss=np.sin(np.arange(200)), objectives=())),
            silent("near miss: no evaluation", sample_run()),
        )


def _training(run: Run) -> tuple[Series | None, str]:
    """The first loss that may be judged; else why there is none."""
    reason = ""
    for trace in run.traces:
        own = own_loss(trace)
        loss = own if own is not None else trace.loss
        reason = says_nothing(run, trace)
        if not reason and loss is not None and len(loss.finite):
            return loss.finite, ""
    return None, reason


def _smooth(s: Series) -> Floats:
    """Medians of three neighbours."""
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(s.values, 3), axis=1))


def _end(s: Series) -> float:
    return float(np.median(s.values[-max(len(s) // 5, 2) :]))


def _holds(run: Run, turned: int) -> bool:
    """Whether an accuracy on held-out data was logged and has not fallen since."""
    found = [s.finite for s in evaluation_scores(run).values() if len(s.finite) >= 5]
    return bool(found) and all(_end(s) >= _level(s, turned) - noise(s.values) for s in found)


def _level(train: Series, step: int) -> float:
    """Median of the losses before a step."""
    width = max(len(train) // 40, min(5, len(train) // 5), 1)
    at = int(np.searchsorted(train.steps, step, "right"))
    return float(np.median(train.values[max(at - width, 0) : max(at, 1)]))
