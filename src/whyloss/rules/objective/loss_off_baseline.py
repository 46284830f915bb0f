"""loss-off-baseline."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.baseline import uniform_cross_entropy
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import BINARY, CROSS_ENTROPY, Baseline, baselines, objective, own_loss, says_nothing
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, sample_run
from whyloss.core.sample_graph import SampleGraph, figures
from whyloss.core.series import Series, fall
from whyloss.core.step_graph import Op, StepGraph
from whyloss.rules.recorded import sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossOffBaseline(Rule):
    """The very first loss is far above that of a prediction which ignores its input.

    ## What it detects
    Before any update, the loss is above `entropy` times ln C (or ln 2 for binary cross-entropy), or above `squares`
    times the variance of the targets (for squared error), and the run has not come down to that baseline since. Of
    several cross-entropies, the one that is furthest off, as the recorded steps show it.
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
            if not reason and op is None and (terms := _terms(trace)):
                yield self._judge_terms(trace, *terms)
            elif reason or own is None or not levels or op is None or own.steps[0] != 0:
                yield self.skipped(reason or "needs the first loss, and one loss op whose baseline is known")
            else:
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

    def _judge_terms(self, trace: Trace, first: "_Term", last: "_Term") -> Outcome:
        times = first.value / first.baseline
        if not times > self.entropy:
            return self.passed(f"of several losses the furthest off begins at {times:.2g} times ln {first.classes}")
        fallen = fall(trace.loss) if trace.loss is not None else None
        end = min(last.value, first.value * fallen.lowest / trace.loss.first if fallen and trace.loss else math.inf)
        return self.finding(
            f"of several losses, {first.op.kind} begins at {first.value:.4g}, {times:.3g} times ln {first.classes}, "
            f"the loss of uniform predictions ({first.baseline:.4g})",
            Evidence("first value", first.value, self.entropy * first.baseline, "", (0,)),
            Evidence("lowest since, by its part in the whole loss", end, first.baseline),
            severity=Severity.INFO if end <= self.recovered * first.baseline else Severity.WARNING,
            place=replace(first.op.place, op=first.op.name),
            change="Scale what the softmax is taken of: weights for their fan-in, a temperature that is not so small.",
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
            fires("one of two losses at 300 for 64 classes", _two(300.0, 100.0), Severity.WARNING),
            fires("and it comes down to the baseline", _two(300.0, 3.0), Severity.INFO),
            silent("near miss: two losses near ln 64", _two(4.6, 3.0)),
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


@dataclass(frozen=True)
class _Term:
    op: Op
    value: float
    classes: int

    @property
    def baseline(self) -> float:
        return uniform_cross_entropy(self.classes)


def _terms(trace: Trace) -> tuple[_Term, _Term] | None:
    """Of several mean cross-entropies the one furthest off before the first update: as it was, and when last seen."""
    start = [t for graph in trace.graphs if graph.step == 0 for t in _cross_entropies(graph)]
    if len(start) < 2:
        return None
    worst = max(start, key=lambda t: t.value / t.baseline)
    later = [t for graph in trace.graphs for t in _cross_entropies(graph) if t.op.place == worst.op.place]
    return worst, later[-1]


def _cross_entropies(graph: StepGraph) -> Iterator[_Term]:
    for op in graph.loss_ops:
        shape, looks = graph.values[graph.prediction(op)].shape, graph.values[op.outputs[0]].statistics
        mean = op.kind in CROSS_ENTROPY and op.reduction in (None, "mean")
        if mean and looks is not None and looks.nonfinite == 0 and len(shape) > 1 and shape[1] > 1:
            yield _Term(op, looks.mean, shape[1])


def _two(first: float, last: float) -> Run:
    """A contrastive loss: a cross-entropy along the rows, one along the columns."""

    def graph(value: float) -> StepGraph:
        step = SampleGraph()
        logits = step.linear(step.leaf("input", "x", 64, 24), "tower", 64)
        losses = [step.loss("cross_entropy", logits, step.leaf("target", "", 64, dtype="int64")) for _ in "rc"]
        for number in losses:
            step.values[number] = replace(step.values[number], statistics=figures(value, value, mean=value))
        return step.graph(step.like("torch.add", *losses))

    return sample_recorded(graph(first), graph(last), loss=falling(200, first, last), objectives=())
