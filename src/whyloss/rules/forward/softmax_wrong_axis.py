"""softmax-wrong-axis."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.run import Trace
from whyloss.core.sample import flat
from whyloss.core.sample_graph import F, SampleGraph
from whyloss.core.softmax import SOFTMAXES, axis_of
from whyloss.core.step_graph import RESHAPES, Op, Shape, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent

PRODUCTS = frozenset(("matmul", "bmm"))
SCALING = frozenset(("div", "truediv", "mul", "add", "masked_fill", "clamp"))
LAST = frozenset(("log", "log2", "clamp", "clip", "add", "dropout", "nan_to_num"))


@dataclass(frozen=True)
class SoftmaxWrongAxis(Rule):
    """A softmax goes over the batch, or over an axis of length 1, and not over the classes.

    ## What it detects
    In a recorded step, a softmax or log-softmax whose result is the prediction of a loss function and whose axis is
    the batch, so that the examples compete for one another's probability; or has length 1, so that every result is 1.
    In attention, a softmax over the queries where the product with the values sums over the keys.
    ## Why it matters
    Over the batch, a prediction depends on which other examples it stands with, and rows do not sum to 1. Over one
    element the output is constant, and all gradients are 0.
    ## What else looks like this
    Attention over the keys, over slots (whose weights are normalised once more) or over a first axis that is time;
    two-way contrastive losses, whose square table of pairs has a softmax along either axis; a sequence or a set of a
    single element inside the network. Attention over queries may work nearly as well: an info in a run that learns.
    A head of a single unit is output-range.
    ## What to do
    Name the class axis: `dim=1` for [N, C] and [N, C, …], `dim=-1` for [N, T, C]. Without `dim`, torch takes the first
    axis of a tensor with one or three.
    """

    name = "softmax-wrong-axis"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "zero-gradient"),
        *("softmax-before-cross-entropy", "nll-on-probabilities", "batch-leak", "lr-too-low", "loss-off-baseline"),
        *("vanishing-gradient", "loss-target-mismatch", "output-range", "saturated-activation", "update-not-landing"),
    )
    change = "Let the softmax go over the classes: dim=1 for [N, C], dim=-1 for [N, T, C]."
    verify = "Run again: along that axis every row of probabilities sums to 1."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.functional.softmax.html",)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        severity = Severity.WARNING if ends_poorly(trace) else Severity.INFO
        see = partial(_see, attention=severity)
        yield from look(self, trace, see, "each softmax before a loss went over classes, those of attention over keys")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        still = flat(60)
        return (
            fires("over the batch", sample_recorded(_step((8, 10), 0), loss=still), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step((8, 10), 0), loss=[2.3]), Severity.ERROR),
            fires("no axis given, three axes", sample_recorded(_step((8, 5, 10), None, "kl_div")), Severity.ERROR),
            fires("over an axis of length 1", sample_recorded(_step((8, 1, 10), 1, "mse_loss")), Severity.ERROR),
            fires("log of it", sample_recorded(_step((8, 10), 0, "nll_loss", then="log")), Severity.ERROR),
            fires("attention over queries", sample_recorded(_heads(-2), loss=still), Severity.WARNING),
            silent("near miss: the same in a run that learns", sample_recorded(_heads(-2))),
            silent("near miss: over keys", sample_recorded(_heads(-1), loss=still)),
            silent("near miss: slots, normalised once more", sample_recorded(_heads(-2, slots=True), loss=still)),
            silent("near miss: over the classes", sample_recorded(_step((8, 10), 1))),
            silent("near miss: over the last axis", sample_recorded(_step((8, 5, 10), -1, "kl_div"))),
            silent("near miss: no axis given, two axes", sample_recorded(_step((8, 10), None))),
            silent("near miss: a square table of pairs", sample_recorded(_step((8, 8), 0))),
            silent("near miss: one unit", sample_recorded(_step((8, 1), 1, "mse_loss"))),
            silent("near miss: a vector", sample_recorded(_step((10,), 0))),
            silent("near miss: attention over a first axis", sample_recorded(_step((8, 10), 0, then="matmul"))),
        )


def _see(graph: StepGraph, attention: Severity) -> Iterator[Sight]:
    yield from _attention(graph, attention)
    for loss in graph.loss_ops:
        number = graph.prediction(loss)
        source = graph.origin(loss, number, LAST)
        axis = axis_of(graph, source) if isinstance(source, Op) and source.kind in SOFTMAXES else None
        if isinstance(source, Op) and axis is not None:
            shape = graph.values[source.inputs[0]].shape
            why = _why(shape, axis, _batch(graph, loss, source))
            if why:
                yield Sight(
                    op=source,
                    message=f"{named(source)} goes over axis {axis} of {list(shape)}, {why}",
                    evidence=(
                        Evidence(
                            "axis of the softmax, and its length", f"{axis}: {shape[axis]}", "that of the classes"
                        ),
                        Evidence("shape that it is given", str(list(shape))),
                    ),
                )


def _attention(graph: StepGraph, severity: Severity) -> Iterator[Sight]:
    """A softmax of a product of matrices, over the rows of what the next product sums up column by column."""
    for op in graph.ops:
        axis = axis_of(graph, op) if op.kind == "softmax" else None
        shape = graph.values[op.inputs[0]].shape if axis is not None else ()
        scores = graph.origin(op, op.inputs[0], SCALING) if axis is not None else None
        if axis != len(shape) - 2 or len(shape) < 3 or not isinstance(scores, Op) or scores.kind not in PRODUCTS:
            continue
        product = _product_of(graph, op)
        if product is not None:
            yield Sight(
                op=op,
                message=f"{named(op)} goes over axis {axis} of {list(shape)}, the queries: in the product at "
                f"{at(product)} the weights of one query do not sum to 1",
                evidence=(Evidence("axis of the softmax", axis, f"{len(shape) - 1}, that is summed over"),),
                severity=severity,
                overrides={"change": "Let the softmax go over the keys, dim=-1: the axis that the product sums over."},
            )


def _product_of(graph: StepGraph, op: Op) -> Op | None:
    """The product of which the result is the left factor, as it is but for dropout."""
    while True:
        users = graph.users(op)
        if len(users) != 1 or not users[0].inputs or users[0].inputs[0] not in op.outputs:
            return None
        op = users[0]
        if op.kind in PRODUCTS:
            return op
        if op.kind not in ("dropout", "to", "type_as", "contiguous", "clone"):
            return None


def _why(shape: Shape, axis: int, batch: bool) -> str:
    if shape[axis] == 1 and any(n > 1 for i, n in enumerate(shape) if i not in (0, axis)):
        return "which has one element: the result is 1 throughout"
    square = len(shape) == 2 and shape[0] == shape[1]
    if axis == 0 and len(shape) > 1 and shape[0] > 1 and batch and not square and any(n > 1 for n in shape[1:]):
        return "which is the batch: the examples share one probability among them"
    return ""


def _batch(graph: StepGraph, loss: Op, source: Op) -> bool:
    """Whether its first axis is the batch: that of the targets, reached without moving axes."""
    target = graph.target(loss)
    first = graph.values[source.inputs[0]].shape[0]
    theirs = graph.values[target].shape[:1] if target is not None else ()
    moves = RESHAPES & {"transpose", "permute", "t", "T", "mT", "movedim", "moveaxis", "swapaxes", "swapdims"}
    between = [op for op in graph.ops if op.kind in moves and source.outputs[:1] == op.inputs[:1]]
    return theirs == (first,) and not between


def _step(shape: Shape, dim: int | None, kind: str = "cross_entropy", *, then: str = "") -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", *shape[:-1], 6), "head", shape[-1])
    out = step.like(F + "softmax", out, arguments={"dim": dim})
    if then == "matmul":
        out = step.like("torch.matmul", step.leaf("input", "v", *shape), out)
    elif then:
        out = step.like(f"torch.{then}", out)
    labels = kind in ("cross_entropy", "nll_loss")
    y = step.leaf("target", "", *(shape[:1] if labels else shape), dtype="int64" if labels else "float32")
    return step.graph(step.loss(kind, out, y))


def _heads(dim: int, *, slots: bool = False) -> StepGraph:
    """Attention of twelve positions to one another."""
    step = SampleGraph()
    q = step.linear(step.leaf("input", "x", 8, 12, 6), "q", 16)
    scores = step.call("torch.matmul", q, step.leaf("input", "k", 8, 16, 12), shape=(8, 12, 12))
    weights = step.like(F + "softmax", step.like("torch.Tensor.div", scores), arguments={"dim": dim})
    weights = step.like("torch.Tensor.div", weights, weights) if slots else step.like(F + "dropout", weights)
    out = step.call("torch.matmul", weights, step.leaf("input", "v", 8, 12, 16), shape=(8, 12, 16))
    return step.graph(step.loss("mse_loss", out, step.leaf("target", "", 8, 12, 16)))
