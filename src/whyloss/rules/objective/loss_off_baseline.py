"""loss-off-baseline."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import BINARY, CROSS_ENTROPY, Baseline, baselines, objective, own_loss, says_nothing
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import Series, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossOffBaseline(Rule):
    """The very first loss is far above that of a prediction which ignores its input.

    ## What it detects
    Before any update, the loss is above `entropy` times ln C (or ln 2 for binary cross-entropy), or above `squares`
    times the variance of the targets (for squared error), and the run has not come down to that baseline since.
    ## Why it matters
    The network is confidently wrong before it has learned anything: its initial outputs are far too large, or the
    targets lie far from what it emits. The first part of the training is spent on undoing that, if it ever is.
    ## What else looks like this
    A fine-tuned or resumed model begins below the baseline. A pretrained head on new labels, or regression on raw
    targets (prices, years) begins above it and recovers: a run that comes down to the baseline is reported as info
    only, and so is one of fewer than `updates` updates, unless its first loss is `hopeless` times the baseline.
    ## What to do
    Check the initialisation of the last layers (PyTorch's default starts at the baseline; N(0, 1) weights do not), the
    scale of the inputs, and for regression standardise the targets or set the last bias to their mean.
    """

    name = "loss-off-baseline"
    boundary = Boundary.OBJECTIVE
    explains = ("loss-diverging", "loss-at-baseline")
    explained_by = (
        "zero-gradient",
        "exploding-gradient",
        "activation-explosion",
        "bad-init-scale",
        "input-unscaled",
        "target-unscaled",
    )
    change = "Scale the initial weights for their fan-in, or use PyTorch's default; standardise inputs and targets."
    verify = "Run again: the first loss is near that baseline."

    entropy: float = threshold(3.0, unit="times ln C", why="default initialisation gives 1.0 to 1.2 times ln C")
    squares: float = threshold(10.0, unit="times the variance", why="targets three deviations off recover")
    hopeless: float = threshold(10.0, unit="times ln C", why="no pretrained head was seen to begin so wrong")
    recovered: float = threshold(1.1, unit="times the baseline", why="batch losses scatter by a tenth there")
    updates: int = threshold(50, unit="updates", why="healthy runs that began far off had come down by then")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            own, levels, op = own_loss(trace), baselines(trace), objective(trace)
            reason = says_nothing(run, trace)
            if reason or own is None or not levels or op is None or own.steps[0] != 0:
                yield self.skipped(reason or "needs the first loss, and one loss op whose baseline is known")
                continue
            yield self._judge(trace, op, own, levels[0])

    def _judge(self, trace: Trace, op: Objective, own: Series, level: Baseline) -> Outcome:
        classified = op.kind in CROSS_ENTROPY + BINARY
        times = own.first / level.value
        limit = self.entropy if classified else self.squares
        if not np.isfinite(times) or times <= limit:
            return self.passed(f"the first loss is {own.first:.4g}, {times:.2g} times {level.name}")
        result = fall(own)
        end = own.finite.last if result is None else result.lowest
        early = trace.updates < self.updates and not (classified and times > self.hopeless)
        good = end <= self.recovered * level.value
        return self.finding(
            f"the first loss is {own.first:.4g}, {times:.3g} times {level.name} ({level.value:.4g})",
            Evidence("first loss", own.first, limit * level.value, "", (0,)),
            Evidence("lowest loss level since", end, level.value),
            severity=Severity.INFO if good or early else Severity.WARNING,
            place=trace.loss_place,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        squared = (Objective(kind="mse_loss"),)
        prices = {"target/variance": 1.0}
        late = falling(400, 500.0, 0.3)
        return (
            fires("46 for ten classes, still at 4.8", sample_run(loss=falling(200, 46.0, 4.8)), Severity.WARNING),
            fires("95 at the first of three updates", sample_run(loss=[95.0, 93.0, 90.0]), Severity.WARNING),
            fires(
                "squared error at 500 times the variance",
                sample_run(loss=falling(200, 500.0, 30.0), objectives=squared, signals=prices),
            ),
            silent("near miss: default initialisation, 2.7 for ten classes", sample_run(loss=falling(200, 2.7))),
            silent("near miss: a pretrained head that begins at 8 and learns", sample_run(loss=falling(200, 8.0, 0.2))),
            silent("near miss: fine-tuning that begins at 0.1", sample_run(loss=falling(200, 0.1, 0.05))),
            silent(
                "near miss: raw targets that are reached",
                sample_run(loss=np.r_[late, falling(100, 4.0, 0.3)], objectives=squared, signals=prices),
            ),
            silent(
                "near miss: raw targets, after 20 updates",
                sample_run(loss=falling(20, 500.0, 300.0), objectives=squared, signals=prices),
            ),
            silent(
                "near miss: squared error against zeros, as of a residual",
                sample_run(loss=falling(200, 90.0, 0.4), objectives=squared, signals={"target/variance": 0.0}),
            ),
            silent("near miss: a loss without a known baseline", sample_run(loss=falling(200, 90.0), objectives=())),
        )
