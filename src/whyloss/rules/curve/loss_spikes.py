"""loss-spikes."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import says_nothing
from whyloss.core.progress import learned
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Series, noise
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossSpikes(Rule):
    """Now and then the loss jumps far above its level and comes back.

    ## What it detects
    Single losses above `times` the median of their neighbours, and above it by more than `noises` deviations of the
    noise, in at most `share` of the updates. An alarm only where after `many` of them and more, and after `part` of
    them, the next losses are still `lasting` times as high as before (the weights were thrown, it is not the batch
    alone), and they raise the mean loss of a run that learns by more than `cost` of where it began.
    ## Why it matters
    A step on a bad batch, or one that is too large for the place, throws the weights; an optimizer's moments carry that
    on for many steps.
    ## What else looks like this
    Noise of small batches; the first steps of a warm restart; losses near 0, whose ratios say nothing: they must exceed
    a hundredth of the first loss as well. A hard batch now and then, or heavy-tailed data: the next loss is as before.
    ## What to do
    Look at the batch of a spike (its update stands in the evidence): is it the data? Else clip the gradient norm, or
    lower the rate.
    """

    name = "loss-spikes"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = (
        "lr-too-high",
        "unshuffled-data",
        "input-unscaled",
        "exploding-gradient",
        "optimizer-recreated",
        "clip-after-step",
        "batchnorm-tiny-batch",
        "data-nonfinite",
    )
    change = "Look at the batches of the spikes; clip the gradient norm, or lower the rate."
    verify = "Run again with the gradient norm clipped at its usual value: the spikes are gone or flat."

    times: float = threshold(5.0, unit="times the neighbours", why="batches of healthy runs stayed within three times")
    noises: float = threshold(10.0, unit="deviations", why="heavy-tailed batch losses reach six")
    share: float = threshold(0.25, unit="of the updates", why="more of them are a part of the level itself")
    many: int = threshold(3, unit="spikes", why="one or two may be single examples")
    part: float = threshold(0.25, unit="of the spikes", why="in heavy-tailed data one in eighteen came after another")
    lasting: float = threshold(
        2.0, unit="times the level before", why="a hard batch leaves the next ones where they were"
    )
    cost: float = threshold(0.1, unit="of the start", why="spikes of healthy runs raised their mean by a thirtieth")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            reason = says_nothing(run, trace)
            loss = trace.loss
            if reason or loss is None or len(loss.finite) < 60:
                yield self.skipped(reason or "needs the loss of 60 updates")
            else:
                yield self._judge(trace, loss.finite)

    def _judge(self, trace: Trace, loss: Series) -> Outcome:
        around = _around(loss.values)
        excess = loss.high - around
        far = (loss.high > self.times * np.abs(around)) & (excess > self.noises * noise(loss.values))
        start = float(np.median(loss.values[:10]))
        far &= (excess > 0.01 * abs(start)) & (np.arange(len(loss)) >= 10)
        first = np.flatnonzero(far & ~np.r_[False, far[:-1]])
        if not len(first) or far.mean() > self.share:
            return self.passed(
                f"no loss stands out of its neighbours: at most {_most(loss.high, around):.3g} times them"
            )
        where = ", ".join(str(loss.steps[i]) for i in first[:6])
        top = int(np.argmax(np.where(far, excess, -np.inf)))
        mean = float(np.where(far, loss.values - around, 0.0)[10:].mean())
        thrown = _lasting(loss.values, first, self.lasting)
        least = max(self.many, self.part * len(first))  # of many, some fall together by chance
        hurts = thrown >= least and mean > self.cost * abs(start) and learned(trace)
        return self.finding(
            f"the loss jumps {len(first)} times, up to {loss.high[top]:.4g} among neighbours at {around[top]:.4g}; "
            f"that raises its mean by {mean:.3g}",
            Evidence("updates of the first spikes", where, None, "", tuple(int(loss.steps[i]) for i in first[:6])),
            Evidence("highest, over its neighbours", float(loss.high[top] / around[top]), self.times, "times"),
            Evidence("what the spikes add to the mean loss", mean, self.cost * abs(start)),
            Evidence("spikes after which the loss is still high", thrown, f"below {least:.3g}"),
            severity=Severity.WARNING if hurts else Severity.INFO,
            place=trace.loss_place,
            first_step=int(loss.steps[first[0]]),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(400)
        calm = falling(400)
        tail = (steps % 20 == 19) | np.isin(steps // 20, (5, 9, 14)) & (steps % 20 > 14)
        return (
            fires(
                "40 at every 50th update, which takes ten to come back",
                sample_run(loss=calm + np.where(steps >= 49, 40.0 * 0.6 ** ((steps - 49) % 50), 0.0)),
                Severity.WARNING,
            ),
            silent("near miss: batches of heavy-tailed data", sample_run(loss=np.where(steps % 50 == 49, 40.0, calm))),
            silent("near miss: heavy tails, three by three", sample_run(loss=np.where(tail, 40.0, calm))),
            silent("near miss: 1.9 at every 50th", sample_run(loss=np.where(steps % 50 == 49, 1.9, calm))),
            silent(
                "near miss: a growing loss, as of Q-learning",
                sample_run(loss=np.where(steps % 50 == 49, 9, calm[::-1])),
            ),
            silent("near miss: one huge loss", sample_run(loss=np.where(steps == 100, 1e3, calm))),
            silent("near miss: noise of 30 %", sample_run(loss=falling(400, noise=0.3))),
            silent(
                "near miss: a loss near 0", sample_run(loss=np.where(steps % 50 == 49, 1e-2, falling(400, 2.3, 1e-3)))
            ),
        )


def _around(values: np.ndarray, width: int = 10) -> np.ndarray:
    """Median of the values on both sides of each, itself included."""
    padded = np.pad(values, width, mode="reflect")
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(padded, 2 * width + 1), axis=1))


def _lasting(values: np.ndarray, first: np.ndarray, times: float) -> int:
    """After how many of the spikes the next five losses have a median that much above the ten before."""
    pairs = ((values[max(i - 10, 0) : i], values[i + 1 : i + 6]) for i in first)
    return sum(len(after) > 0 and float(np.median(after)) > times * float(np.median(before)) for before, after in pairs)


def _most(high: np.ndarray, around: np.ndarray) -> float:
    ratio = high[10:] / np.abs(around[10:])
    return float(ratio.max()) if len(ratio) else 1.0
