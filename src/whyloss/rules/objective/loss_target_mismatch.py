"""loss-target-mismatch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.levels import BINARY
from whyloss.core.run import Objective, Trace
from whyloss.core.sample import falling
from whyloss.core.sample_graph import F, SampleGraph, T, figures
from whyloss.core.softmax import PROBABILITIES, SIGMOIDS, classes_axis
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import Leaf, Op, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, sample_recorded, span
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")

NOTHING_LEARNED = (
    *("vanishing-gradient", "zero-gradient", "symmetric-init", "dead-relu", "activation-collapse", "input-ignored"),
    *("input-constant", "lr-zero", "lr-too-low", "step-missing", "detached-parameters", "update-not-landing"),
    *("frozen-parameters", "optimizer-missing-parameters", "gradient-cleared-early", "labels-uninformative"),
)


@dataclass(frozen=True)
class LossTargetMismatch(Rule):
    """The loss function does not fit the targets that it is given.

    ## What it detects
    In a recorded step: cross-entropy over a single unit, which is 0 whatever is predicted; cross-entropy whose rows of
    targets hold several ones; binary cross-entropy on targets outside [0, 1], such as class numbers or -1 and 1. And,
    only where the run ends poorly, a squared or absolute error on class numbers or on probabilities of classes.
    ## Why it matters
    What is minimised is not what is meant: the loss falls without bound, stays at 0, or takes class 2 for twice 1.
    ## What else looks like this
    Labels smoothed a little beyond [0, 1] (as for discriminators), mixed labels and soft targets whose rows sum to 1, a
    vector that is rebuilt from itself under a multinomial likelihood, counts and ratings under a squared error, and the
    Brier score, a squared error on probabilities, in a run that learns: silent, or an info.
    ## What to do
    One label of several: `cross_entropy` on logits of C units and integer labels. Several labels at once, or yes and
    no: `binary_cross_entropy_with_logits` with targets 0 and 1. Quantities: `mse_loss`.
    """

    name = "loss-target-mismatch"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "loss-diverging"),
        *("zero-gradient", "lr-too-low", "lr-too-high", "loss-off-baseline", "saturated-activation", "loss-nonfinite"),
        *("loss-sign", "vanishing-gradient", "update-not-landing"),
    )
    change = "Use the loss function that fits these targets, with as many outputs as it needs."
    verify = "Run again: the loss starts near its baseline (ln C, ln 2, the targets' variance) and falls from there."

    smoothing: float = threshold(0.5, unit="beyond [0, 1]", why="noisy labels of discriminators reach 0.2 beyond it")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        poor = ends_poorly(trace)

        def see(graph: StepGraph) -> Iterator[Sight]:
            for op in graph.loss_ops:
                target = graph.target(op)
                if target is not None and op.kind == "cross_entropy":
                    yield from _cross_entropy(graph, op, target)
                elif target is not None and op.kind in BINARY:
                    yield from self._binary(graph, op, target)
                elif target is not None and op.kind in DISTANCES:
                    yield from _distance(graph, op, target, poor)

        yield from look(self, trace, see, "targets fitted their loss functions")

    def _binary(self, graph: StepGraph, op: Op, target: int) -> Iterator[Sight]:
        looks = graph.values[target].statistics
        beyond = 0.0 if looks is None else max(looks.high - 1.0, -looks.low)
        if looks is not None and beyond > 1e-6:
            severity = Severity.ERROR if beyond > self.smoothing else Severity.INFO
            yield Sight(
                op=op,
                message=f"{op.kind} at {at(op)} is given targets outside [0, 1]: they lie in {span(looks)}",
                evidence=(Evidence("targets", span(looks), "0 … 1"),),
                severity=severity,
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        hot, soft, numbers = (8, 10), figures(0, 1, 0.1, distribution=True), figures(0, 2, 1.0, integral=True)
        many, signs = figures(0, 1, 0.3, integral=True), figures(-1, 1, integral=True)
        noisy = figures(0.7, 1.2)
        squared: dict[str, Any] = {"objectives": (Objective(kind="mse_loss"),), "signals": {"target/variance": 0.67}}
        poor, good = falling(200, 2.0, 0.6), falling(200, 2.0, 0.05)
        error, warning = Severity.ERROR, Severity.WARNING
        return (
            fires("cross-entropy over one unit", sample_recorded(_step("cross_entropy", 1)), error),
            fires("several ones in a row", sample_recorded(_step("cross_entropy", 10, hot, many)), error),
            fires("class numbers 0, 1, 2", sample_recorded(_step(BINARY[1], 1, (8, 1), numbers)), error),
            fires("-1 and 1", sample_recorded(_step(BINARY[1], 1, (8, 1), signs), loss=[0.7]), error),
            fires("squared error on class numbers", sample_recorded(_labels(), loss=poor, **squared), warning),
            fires("squared error on a softmax", sample_recorded(_labels("softmax"), loss=poor, **squared), warning),
            silent("near miss: it learns all the same", sample_recorded(_labels(), loss=good, **squared)),
            silent("near miss: ten units", sample_recorded(_step("cross_entropy", 10))),
            silent("near miss: soft targets", sample_recorded(_step("cross_entropy", 10, hot, soft))),
            silent("near miss: rebuilt from itself", sample_recorded(_step("cross_entropy", 10, hot, many, own=True))),
            silent("near miss: noisy labels", sample_recorded(_step(BINARY[1], 1, (8, 1), noisy))),
            silent("near miss: quantities", sample_recorded(_step("mse_loss", 1, (8, 1)), loss=poor, **squared)),
        )


def _cross_entropy(graph: StepGraph, op: Op, target: int) -> Iterator[Sight]:
    shape = graph.values[graph.prediction(op)].shape
    classes = shape[classes_axis(shape)] if shape else 0
    if classes == 1:
        yield Sight(
            op=op,
            message=f"cross_entropy at {at(op)} is given a single unit: its softmax is always 1, and the loss always 0",
            evidence=(Evidence("units over which the softmax goes", 1, 2, "units"),),
        )
    value = graph.values[target]
    looks = value.statistics
    if looks is None or not value.floating or value.shape != shape or len(shape) != 2:
        return
    ones = looks.mean * classes
    if looks.integral and looks.low >= 0 and looks.high <= 1 and ones > 1 + 1e-6 and not _is_input(graph, op, target):
        yield Sight(
            op=op,
            message=f"cross_entropy at {at(op)} is given rows of targets with {ones:.3g} ones each: it expects one "
            "class, or probabilities that sum to 1",
            evidence=(Evidence("ones in a row of targets, on average", ones, 1.0, "ones"),),
            overrides={"change": "For several labels at once use binary_cross_entropy_with_logits."},
        )


def _is_input(graph: StepGraph, op: Op, target: int) -> bool:
    """Whether the model is given what it is to predict."""
    source = graph.origin(op, target)
    if not isinstance(source, Leaf):
        return True
    leaf = (-1, source.value)
    return source.role == "input" or leaf in graph.flow.behind(graph.flow.given[graph.flow.place(op)][op.inputs[0]])


def _distance(graph: StepGraph, op: Op, target: int, poor: bool) -> Iterator[Sight]:
    """Class numbers, or probabilities of classes: a weaker loss than cross-entropy, and no error."""
    made, source = graph.feeding(op), graph.origin(op, target)
    looks = graph.values[target].statistics
    if looks is None or not looks.integral or looks.low < 0:
        return
    whole = isinstance(source, Leaf) and graph.values[source.value].dtype.startswith(("int", "uint"))
    if isinstance(made, Op) and made.kind in PROBABILITIES | SIGMOIDS and looks.high == 1:
        what = f"{op.kind} at {at(op)} is taken of probabilities ({named(made)}) and classes"
    elif whole and looks.high > 1:
        what = (
            f"{op.kind} at {at(op)} is taken of what look like class numbers, {span(looks)}, as if they were quantities"
        )
    else:
        return
    yield Sight(
        op=op,
        message=f"{what}; cross-entropy learns classes faster",
        evidence=(Evidence("targets", f"whole numbers, {span(looks)}", "quantities"),),
        severity=Severity.WARNING if poor else Severity.INFO,
        certain=False,
        overrides={
            "verify": "Train with cross-entropy on the same batches: does the accuracy rise further?",
            "explains": ("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged"),
            "explained_by": NOTHING_LEARNED,  # a weaker loss is one that learns
        },
    )


def _step(
    kind: str, units: int, shape: tuple[int, ...] = (8,), looks: Statistics | None = None, *, own: bool = False
) -> StepGraph:
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 10, statistics=looks)
    y = x if own else step.leaf("target", "", *shape, dtype="float32" if len(shape) > 1 else "int64", statistics=looks)
    return step.graph(step.loss(kind, step.linear(x, "head", units), y))


def _labels(end: str = "") -> StepGraph:
    """mse_loss on integers that are cast to floats."""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 3 if end else 1)
    out = step.like(F + end, out) if end else out
    looks = figures(0, 1 if end else 2, integral=True)
    y = step.leaf("target", "", *step.values[out].shape, dtype="int64", statistics=looks)
    return step.graph(step.loss("mse_loss", out, step.like(T + "float", y, statistics=looks)))
