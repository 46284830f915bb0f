"""loss-at-baseline."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import Baseline, baselines, objective, own_loss, says_nothing
from whyloss.core.movement import warming
from whyloss.core.progress import ERRORS
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.series import Series, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

SIGMAS = 2.0  # standard errors below the baseline that free the second half of a run: rather silent than wrong


@dataclass(frozen=True)
class LossAtBaseline(Rule):
    """The loss ends where a prediction that ignores the input would be.

    ## What it detects
    After at least `updates` updates the loss has never been below the best constant prediction (the label entropy for
    cross-entropy, the variance of the targets for squared error), and it ends within `above` of it, or of ln C. "Below"
    means by more than `below` and by more than the noise of the batch losses allows. A run that came down from above
    is reported as info until it has been there for `patience` times as long as it took, and the longer the higher it
    began: its gradients shrink with the residuals.
    ## Why it matters
    The output carries nothing about the input. Somewhere between the input and the loss, the information is cut.
    ## What else looks like this
    A long plateau before a sudden drop (XOR, parity); a warm-up that has not ended; a loss that still falls; labels
    with little signal, where one per cent below the entropy is an achievement; two optimizers that play against each
    other; a policy gradient, whose cross-entropy is that of sampled actions. None of them is reported. Labels that are
    random are, and rightly so.
    ## What to do
    Look at the causes that could explain it. Then try to fit one single batch: if that works, look at the data.
    """

    name = "loss-at-baseline"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ("labels-uninformative", "input-ignored", "input-constant", "class-imbalance", "unshuffled-data")
    change = "Find the cause first: try to fit one single batch, and compare inputs and labels by eye."
    verify = "Run again: the loss falls below that baseline."

    updates: int = threshold(100, unit="updates", why="healthy runs were below their baseline by then")
    above: float = threshold(0.1, unit="of the baseline", why="default initialisation starts up to a tenth above it")
    below: float = threshold(0.005, unit="of the baseline", why="label shares of 100 batches are known to that")

    patience: float = threshold(
        2.0, unit="times the way there", why="a run that came down late may still be going down"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            own, levels = own_loss(trace), baselines(trace)
            reason = says_nothing(run, trace) or self._unsuited(trace, own, levels)
            yield self.skipped(reason) if reason or own is None else self._judge(trace, own.finite, levels)

    def _unsuited(self, trace: Trace, own: Series | None, levels: tuple[Baseline, ...]) -> str:
        op = objective(trace)
        if op is None or own is None or not levels:
            return "needs one loss op whose baseline is known"
        if op.reduction == "none" or (op.kind == "mse_loss" and not op.direct):
            return f"{op.kind} is only a part of the loss, weighted example by example or beside other terms"
        return "" if trace.updates >= self.updates and len(own.finite) > 12 else f"needs {self.updates} updates"

    def _judge(self, trace: Trace, own: Series, levels: tuple[Baseline, ...]) -> Outcome:
        result = fall(own)
        assert result is not None  # more than twelve samples
        error = ERRORS * result.error / np.sqrt(2)  # of one level
        best = levels[-1]
        half = own.values[len(own) // 2 :]
        spread = SIGMAS * float(np.std(half)) / np.sqrt(len(half))
        if spread > self.above * best.value:
            return self.skipped(f"the batch losses scatter too much to compare them with {best.name}")
        for level, allowed in ((result.lowest, error), (float(np.mean(half)), spread)):
            if level < best.value - max(self.below * best.value, allowed):
                return self.passed(f"the loss went down to {level:.4g}, below {best.name} ({best.value:.4g})")
        near = [b for b in levels if abs(result.end - b.value) <= self.above * b.value + error]
        if not near or self._moving(trace, own):
            return self.passed(f"the loss went from {result.start:.4g} to {result.end:.4g} and is not at a level yet")
        match = min(near, key=lambda b: abs(result.end - b.value))
        way = _arrival(own, result.width, (1 + self.above) * match.value + error)
        slower = max(own.first / match.value, 1.0) ** 0.5  # near the level, gradients are as much smaller as residuals
        soon = int(own.steps[-1]) - way < self.patience * slower * way
        return self.finding(
            f"the loss is at {result.end:.4g} after {trace.updates} updates, no better than {match.name} "
            f"({match.value:.4g})",
            Evidence("loss level at the end", result.end, match.value, "", (0, int(own.steps[-1]))),
            Evidence("lowest loss level", result.lowest, best.value),
            severity=Severity.INFO if soon else Severity.WARNING,
            place=trace.loss_place,
            first_step=way,
        )

    def _moving(self, trace: Trace, own: Series) -> bool:
        """Still on its way down, or still warming up."""
        half = fall(own.since(int(own.steps[-1]) // 2))
        if half is not None and half.drop > max(ERRORS * half.error, 2 * self.below * half.start):
            return True
        return warming(trace)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        squared = (Objective(kind="mse_loss"),)
        noisy = flat(200, 0.6, 0.3)
        weighted = Objective(kind="cross_entropy", classes=10, reduction="none", direct=False)
        late = np.r_[falling(120, 90.0, 2.32), flat(110)]
        parity = np.r_[flat(400, 2.303), falling(100, 2.3, 0.1)]
        tiny = flat(300, 2.3026 * 0.985, 0.002)
        return (
            fires("ln 10 for 200 updates", sample_run(loss=flat(200)), Severity.WARNING),
            fires("from 3.4 down to ln 10, then level", sample_run(loss=np.r_[falling(200, 3.4, 2.31), flat(300)])),
            fires(
                "squared error at the variance of the targets",
                sample_run(loss=noisy, objectives=squared, signals={"target/variance": 0.6}),
            ),
            fires(
                "imbalanced classes: at the label entropy, below ln 10",
                sample_run(loss=flat(200, 1.2), signals={"target/entropy": 1.2}),
            ),
            silent("near miss: a long plateau before the drop", sample_run(loss=parity)),
            silent("near miss: little signal, 1.5 % below ln 10", sample_run(loss=tiny)),
            silent("near miss: from 90, there for half of the run only", sample_run(loss=late)),
            silent("near miss: still falling", sample_run(loss=np.linspace(2.6, 2.31, 200))),
            silent(
                "near miss: a warm-up that has not ended",
                sample_run(loss=flat(200), signals={"lr[0]": np.linspace(0.0, 1e-3, 200)}),
            ),
            silent(
                "near miss: the cross-entropy of sampled actions, weighted",
                sample_run(loss=flat(200), objectives=(weighted,)),
            ),
            silent("near miss: single examples, too noisy to say", sample_run(loss=flat(200, 2.3, 1.5))),
            silent("near miss: too short", sample_run(loss=flat(60))),
        )


def _arrival(own: Series, width: int, limit: float) -> int:
    """The first update from which `width` losses in a row have a median at or below the limit."""
    medians = np.median(np.lib.stride_tricks.sliding_window_view(own.values, width), axis=1)
    return int(own.steps[np.argmax(medians <= limit)])
