"""softmax-before-cross-entropy."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample import falling
from whyloss.core.sample_graph import F, SampleGraph, T, figures
from whyloss.core.softmax import PROBABILITIES, UNCHANGED, classes_axis, over_batch, softmax_floor
from whyloss.core.step_graph import Op, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, near_floor, sample_recorded, span
from whyloss.rules.rule import Example, Rule, fires, silent


@dataclass(frozen=True)
class SoftmaxBeforeCrossEntropy(Rule):
    """Cross-entropy is given probabilities where it expects logits: softmax is applied twice.

    ## What it detects
    In a recorded step, a softmax whose result goes into `cross_entropy` (or `log_softmax` and `nll_loss`) through
    nothing but reshapes and casts; or, whatever made them, predictions whose rows all lie in [0, 1] and sum to 1.
    ## Why it matters
    The difference between two such "logits" is at most 1, so that no prediction is ever confident: the loss can't fall
    below ln(1 + (C - 1)/e), which is 1.46 for ten classes, and the gradient is several times too small.
    ## What else looks like this
    `log_softmax` before `cross_entropy` changes nothing, since it is applied to its own result: an info. Probabilities
    as the *target*, log of a softmax, and probabilities scaled by a temperature are as they should be. A run that
    comes near the least possible loss all the same gets an info.
    ## What to do
    Remove the softmax from the model, and apply it only where probabilities are read.
    """

    name = "softmax-before-cross-entropy"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "lr-too-low"),
        *("lr-limited-plateau", "vanishing-gradient", "saturated-activation", "output-range"),
    )
    change = "Give cross_entropy the logits: remove this softmax, or take log(...) and nll_loss."
    verify = "Run again: the rows of the prediction no longer sum to 1, and the loss falls below that floor."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        def see(graph: StepGraph) -> Iterator[Sight]:
            for loss, op, number in _logits(graph):
                shape = graph.values[number].shape
                if shape and shape[classes_axis(shape)] > 1:
                    yield from _sights(graph, loss, op, number)

        nothing = "no cross-entropy was given probabilities"
        yield from look(self, trace, see, nothing, lambda sight: near_floor(trace, sight))

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        softmax = _classifier("softmax")
        slow = falling(200, 2.3, 1.9)
        return (
            fires("softmax before cross-entropy", sample_recorded(softmax, loss=slow), Severity.ERROR),
            fires("named at the first update", sample_recorded(softmax, loss=[2.3]), Severity.ERROR),
            fires("through a reshape", sample_recorded(_classifier("softmax", T + "view"), loss=slow), Severity.ERROR),
            fires("log_softmax and nll_loss of it", sample_recorded(_pieces("softmax"), loss=slow), Severity.ERROR),
            fires("rows that sum to 1, by hand", sample_recorded(_by_hand(), loss=slow), Severity.ERROR),
            silent("near miss: logits", sample_recorded(_classifier("relu"))),
            silent("near miss: log_softmax twice", sample_recorded(_classifier("log_softmax"), loss=slow)),
            silent("near miss: log_softmax and nll_loss", sample_recorded(_pieces("relu"))),
            silent("near miss: the log of a softmax", sample_recorded(_classifier("softmax", "torch.log"))),
            silent("near miss: probabilities times a scale", sample_recorded(_classifier("softmax", T + "mul"))),
            silent("near miss: probabilities as the target", sample_recorded(_soft_targets())),
            silent("near miss: it learns to its floor", sample_recorded(softmax, loss=falling(200, 2.3, 1.49))),
        )


def _logits(graph: StepGraph) -> Iterator[tuple[Op, Op, int]]:
    """Each loss function that expects logits of classes: itself, the call that normalises them, and their number."""
    for op in graph.loss_ops:
        if op.kind == "cross_entropy" and graph.prediction(op) == op.inputs[0]:
            yield op, op, op.inputs[0]
        elif op.kind == "nll_loss":
            source = graph.feeding(op)
            if isinstance(source, Op) and source.kind == "log_softmax":
                yield op, source, source.inputs[0]


def _sights(graph: StepGraph, loss: Op, op: Op, number: int) -> Iterator[Sight]:
    source = graph.origin(op, number, UNCHANGED)
    shape, looks = graph.values[number].shape, graph.values[number].statistics
    rows = looks is not None and looks.distribution and len(shape) - 1 == classes_axis(shape)
    if isinstance(source, Op) and source.kind == "log_softmax" and loss is op:
        yield _twice(loss, source)
    elif isinstance(source, Op) and source.kind in PROBABILITIES:
        if not over_batch(graph, source):  # that is softmax-wrong-axis
            yield _sight(graph, loss, number, source, f"{named(source)} stands before it", rows)
    elif rows:
        yield _sight(graph, loss, number, loss, "every row lies in [0, 1] and sums to 1", rows)


def _sight(graph: StepGraph, loss: Op, number: int, where: Op, why: str, rows: bool) -> Sight:
    shape, looks = graph.values[number].shape, graph.values[number].statistics
    floor = softmax_floor(shape[classes_axis(shape)])
    evidence = [Evidence("the least loss that it can reach", floor, 0.0, "nats")]
    if looks is not None:
        evidence.append(Evidence("what it takes for logits", span(looks), "unbounded"))
    if rows:
        evidence.append(Evidence("rows that sum to 1", "all", "none", "rows"))
    return Sight(
        op=where,
        message=f"{loss.kind} at {at(loss)} is given probabilities and not logits: {why}",
        evidence=tuple(evidence),
        floor=floor,
    )


def _twice(loss: Op, source: Op) -> Sight:
    return Sight(
        op=source,
        message=f"{named(source)} stands before {loss.kind}, which applies it again: harmless, and twice the work",
        evidence=(Evidence("calls of log_softmax on the way", 2, 1, "calls"),),
        severity=Severity.INFO,
        overrides={"change": "Give cross_entropy the logits, or use nll_loss.", "explains": ()},
    )


def _classifier(*ends: str) -> StepGraph:
    """A linear layer, these calls, and cross-entropy."""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    for end in ends:
        out = step.like(end if "." in end else F + end, out, arguments={"dim": 1})
    return step.graph(step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64")))


def _pieces(end: str) -> StepGraph:
    step = SampleGraph()
    out = step.like(F + end, step.linear(step.leaf("input", "x", 8, 6), "head", 10), arguments={"dim": -1})
    logs = step.like(F + "log_softmax", out, arguments={"dim": -1})
    return step.graph(step.loss("nll_loss", logs, step.leaf("target", "", 8, dtype="int64")))


def _by_hand() -> StepGraph:
    """exp(x) / exp(x).sum()."""
    step = SampleGraph()
    powers = step.like("torch.exp", step.linear(step.leaf("input", "x", 8, 6), "head", 10))
    total = step.call(T + "sum", powers, shape=(8, 1), arguments={"dim": 1, "keepdim": True})
    rows = step.like(T + "div", powers, total, statistics=figures(0.01, 0.4, 0.1, distribution=True))
    return step.graph(step.loss("cross_entropy", rows, step.leaf("target", "", 8, dtype="int64")))


def _soft_targets() -> StepGraph:
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 6)
    teacher = step.like(F + "softmax", step.linear(x, "teacher", 10, grad=False), arguments={"dim": 1})
    return step.graph(step.loss("cross_entropy", step.linear(x, "head", 10), teacher))
