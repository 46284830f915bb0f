"""softmax-wrong-axis."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample import flat
from whyloss.core.sample_graph import F, SampleGraph
from whyloss.core.softmax import SOFTMAXES, axis_of
from whyloss.core.step_graph import RESHAPES, Op, Shape, StepGraph
from whyloss.rules.recorded import Sight, look, named, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent

LAST = frozenset(("log", "log2", "clamp", "clip", "add", "dropout", "nan_to_num"))


@dataclass(frozen=True)
class SoftmaxWrongAxis(Rule):
    """A softmax goes over the batch, or over an axis of length 1, and not over the classes.

    ## What it detects
    In a recorded step, a softmax or log-softmax whose result is the prediction of a loss function and whose axis is
    the batch, so that the examples compete for one another's probability; or has length 1, so that every result is 1.
    ## Why it matters
    Over the batch, a prediction depends on which other examples it stands with, and rows do not sum to 1. Over one
    element the output is constant, and all gradients are 0.
    ## What else looks like this
    Attention over the keys, over slots or over a first axis that is time; two-way contrastive losses, whose square
    table of pairs has a softmax along either axis; a sequence or a set of a single element inside the network. Only
    what goes into a loss function is looked at here. A head of a single unit is output-range.
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
        yield from look(self, trace, _see, "each softmax before a loss went over classes")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        still = flat(60)
        return (
            fires("over the batch", sample_recorded(_step((8, 10), 0), loss=still), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step((8, 10), 0), loss=[2.3]), Severity.ERROR),
            fires("no axis given, three axes", sample_recorded(_step((8, 5, 10), None, "kl_div")), Severity.ERROR),
            fires("over an axis of length 1", sample_recorded(_step((8, 1, 10), 1, "mse_loss")), Severity.ERROR),
            fires("log of it", sample_recorded(_step((8, 10), 0, "nll_loss", then="log")), Severity.ERROR),
            silent("near miss: over the classes", sample_recorded(_step((8, 10), 1))),
            silent("near miss: over the last axis", sample_recorded(_step((8, 5, 10), -1, "kl_div"))),
            silent("near miss: no axis given, two axes", sample_recorded(_step((8, 10), None))),
            silent("near miss: a square table of pairs", sample_recorded(_step((8, 8), 0))),
            silent("near miss: one unit", sample_recorded(_step((8, 1), 1, "mse_loss"))),
            silent("near miss: a vector", sample_recorded(_step((10,), 0))),
            silent("near miss: attention over a first axis", sample_recorded(_step((8, 10), 0, then="matmul"))),
        )


def _see(graph: StepGraph) -> Iterator[Sight]:
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
