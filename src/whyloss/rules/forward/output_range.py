"""output-range."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample import flat
from whyloss.core.sample_graph import F, SampleGraph, T, figures
from whyloss.core.softmax import SOFTMAXES, axis_of
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import Leaf, Op, Shape, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, sample_recorded, span
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

INF = math.inf
RANGES = {
    "relu": (0.0, INF),
    "relu6": (0.0, 6.0),
    "softplus": (0.0, INF),
    "exp": (0.0, INF),
    "abs": (0.0, INF),
    "square": (0.0, INF),
    "sigmoid": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "softmax": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "softsign": (-1.0, 1.0),
    "elu": (-1.0, INF),
    "selu": (-1.7581, INF),
    "gelu": (-0.17, INF),
    "silu": (-0.2785, INF),
    "mish": (-0.3089, INF),
    "log_softmax": (-INF, 0.0),
    "logsigmoid": (-INF, 0.0),
}  # with torch's default arguments
DISTANCES = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
SQUARES = frozenset(("pow", "square", "abs", "absolute"))


@dataclass(frozen=True)
class OutputRange(Rule):
    """The last activation can't emit the targets: they lie outside its range.

    ## What it detects
    In a recorded step, an activation whose result is held against the targets by a squared or absolute error, and
    targets that lie outside what it can emit by more than `beyond` of their standard deviation, not as single strays:
    a ReLU with negative targets, a sigmoid with targets of 50, a tanh with standardised ones. Also a softmax over a
    single unit, which is 1 whatever it is given.
    ## Why it matters
    The error on those targets stays, and the activation is driven to its edge, where its gradient is 0.
    ## What else looks like this
    Targets that go a little beyond the range (noise on counts, images at 1.0001), an activation that is scaled before
    it is compared, and a leaky or linear end: none of these is reported.
    ## What to do
    End the network with a linear layer, or bring the targets into the range of the activation.
    """

    name = "output-range"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "zero-gradient"),
        *("dead-relu", "vanishing-gradient", "saturated-activation", "lr-too-low", "target-unscaled"),
        *("loss-target-mismatch", "loss-off-baseline", "input-ignored", "update-not-landing"),
    )
    change = "End the network with a linear layer, or bring the targets into the range of this activation."
    verify = "Run again: the lowest and highest target lie within what the last call can emit."

    beyond: float = threshold(0.5, unit="std of the targets", why="noise on targets of a bounded kind stays below it")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        yield from look(self, trace, self._see, "targets lay within the range of what is held against them")

    def _see(self, graph: StepGraph) -> Iterator[Sight]:
        for op in graph.loss_ops:
            source = graph.feeding(op)
            if isinstance(source, Op) and _one_unit(graph, source):
                yield _constant(source, op)
            target = graph.target(op)
            if op.kind in DISTANCES and target is not None:
                yield from self._held(graph, op, source, target)
        for op in graph.tail:
            if op.kind in ("sub", "subtract", "rsub") and len(op.inputs) == 2:
                yield from self._by_hand(graph, op)

    def _by_hand(self, graph: StepGraph, op: Op) -> Iterator[Sight]:
        live = [graph.differentiable(op, n) for n in op.inputs]
        users = graph.users(op)
        if live[0] != live[1] and users and all(u.kind in SQUARES for u in users):
            ours, theirs = op.inputs if live[0] else op.inputs[::-1]
            yield from self._held(graph, op, graph.origin(op, ours), theirs)

    def _held(self, graph: StepGraph, op: Op, source: Op | Leaf, target: int) -> Iterator[Sight]:
        looks = graph.values[target].statistics
        limits = RANGES.get(source.kind) if isinstance(source, Op) else None
        if limits is None or looks is None or looks.nonfinite or not self._outside(looks, *limits):
            return
        assert isinstance(source, Op)
        low, high = (f"{limit:.3g}".replace("inf", "∞") for limit in limits)
        yield Sight(
            op=source,
            message=f"{named(source)} emits {low} … {high}, and is held against targets of {span(looks)} at {at(op)}",
            evidence=(
                Evidence("targets", span(looks), f"{low} … {high}"),
                Evidence("mean and standard deviation of the targets", f"{looks.mean:.3g} ± {looks.std:.3g}"),
            ),
        )

    def _outside(self, looks: Statistics, low: float, high: float) -> bool:
        """By a good part of their spread, and with more than a stray of them."""
        spread = looks.std if looks.std > 0 else abs(looks.mean)
        above = looks.high - high > self.beyond * spread and looks.mean + 2 * spread > high
        below = low - looks.low > self.beyond * spread and looks.mean - 2 * spread < low
        return spread > 0 and (above or below)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        standard, counts, large = figures(-2.4, 2.5, 0, 1), figures(0, 9), figures(0, 2500)
        noisy, pixels, stray = figures(-0.3, 4, 1.0, 1.0), figures(0, 1.001), figures(0, 6, 0.3, 0.3)
        still, error = flat(60), Severity.ERROR
        return (
            fires("ReLU, standardised targets", sample_recorded(_step("relu", standard), loss=still), error),
            fires("named at the first update", sample_recorded(_step("relu", standard), loss=[1.0]), error),
            fires("sigmoid, targets up to 2500", sample_recorded(_step("sigmoid", large), loss=still), error),
            fires("tanh, standardised targets", sample_recorded(_step("tanh", standard, by_hand=True)), error),
            fires("softmax over one unit", sample_recorded(_step("softmax", counts)), error),
            silent("near miss: ReLU, counts", sample_recorded(_step("relu", counts))),
            silent("near miss: ReLU, counts with noise", sample_recorded(_step("relu", noisy))),
            silent("near miss: sigmoid, pixels", sample_recorded(_step("sigmoid", pixels))),
            silent("near miss: sigmoid, a single stray", sample_recorded(_step("sigmoid", stray))),
            silent("near miss: a leaky end", sample_recorded(_step("leaky_relu", standard))),
            silent("near miss: a scaled tanh", sample_recorded(_step("tanh", standard, then="mul"))),
            silent("near miss: softmax over ten", sample_recorded(_step("softmax", figures(0, 1), units=10))),
        )


def _one_unit(graph: StepGraph, op: Op) -> bool:
    """A softmax over the last axis, of length 1, where no other axis can hold classes."""
    axis = axis_of(graph, op) if op.kind in SOFTMAXES else None
    shape: Shape = graph.values[op.inputs[0]].shape if op.inputs else ()
    return axis is not None and shape[axis] == 1 and all(n == 1 for i, n in enumerate(shape) if i not in (0, axis))


def _constant(source: Op, loss: Op) -> Sight:
    value = 0 if source.kind == "log_softmax" else 1
    return Sight(
        op=source,
        message=f"{named(source)} goes over a single unit, so that its result is {value} whatever it is given, at "
        f"{at(loss)}, too",
        evidence=(Evidence("units over which the softmax goes", 1, 2, "units"),),
        overrides={"change": "For a single output use no softmax: a sigmoid for yes and no, nothing for a quantity."},
    )


def _step(end: str, looks: Statistics, *, units: int = 1, then: str = "", by_hand: bool = False) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", units)
    out = step.like(F + end, out, arguments={"dim": 1} if end == "softmax" else {})
    out = step.like(T + then, out, arguments={"other": 3.0}) if then else out
    y = step.leaf("constant" if by_hand else "target", "", 8, units, statistics=looks)
    if not by_hand:
        return step.graph(step.loss("mse_loss", out, y))
    return step.graph(step.call(T + "mean", step.like(T + "pow", step.like(T + "sub", out, y)), shape=()))
