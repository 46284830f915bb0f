"""loss-broadcast."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample import flat
from whyloss.core.sample_graph import F, SampleGraph, T
from whyloss.core.step_graph import (
    BACKWARD,
    BROADCASTING_LOSSES,
    DETACHES,
    ELEMENTWISE,
    RESHAPES,
    Broadcast,
    Leaf,
    Op,
    Shape,
    StepGraph,
    broadcast_shape,
)
from whyloss.rules.recorded import Sight, at, look, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent

PRODUCTS_AND_DIFFERENCES = frozenset(
    ("sub", "subtract", "rsub", "mul", "multiply", "rmul", "div", "divide", "true_divide", "truediv", "rtruediv")
)
# Through these a table of all pairs comes to the same number in whatever order the targets stand.
PLAIN = ELEMENTWISE | RESHAPES | frozenset(("abs", "absolute", "neg", "negative", "square", "sqrt", "where", "clamp"))
SUMS = frozenset(("mean", "sum", "nanmean", "nansum", BACKWARD.rpartition(".")[2]))


@dataclass(frozen=True)
class LossBroadcast(Rule):
    """Prediction and target have different shapes, [N, 1] and [N], and are stretched to [N, N]: all pairs count.

    ## What it detects
    In a recorded step, a loss function, or a difference or product on the way to the loss, whose two operands hold the
    same examples but stand across each other, so that both are enlarged; one depends on the parameters, the other does
    not; and what comes of it goes into a mean or a sum.
    ## Why it matters
    Every prediction is compared with every target. The loss is the same in whatever order the targets stand, so that
    nothing of the input can be learned: the best that the network can do is to emit the mean of the targets.
    ## What else looks like this
    Deliberate tables of pairs: contrastive and ranking losses, kernels and distances, where both sides have a gradient
    or one is written with an axis of its own (`x[:, None] - y`), where a minimum, a softmax, an exponential or a mask
    follows; one target for several hypotheses or quantiles, where one side only is enlarged; prototypes and thresholds
    that belong to the model.
    ## What to do
    Give both the same shape: `prediction.squeeze(-1)`, or `target.unsqueeze(1)`.
    """

    name = "loss-broadcast"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "lr-too-low", "loss-noisy"),
        *("lr-limited-plateau", "activation-collapse", "input-ignored", "labels-uninformative", "loss-wrong-value"),
    )
    change = "Give both the same shape: squeeze(-1) the prediction, or unsqueeze(1) the target."
    verify = "Run again: prediction and target have the same shape where they meet."
    references = ("https://docs.pytorch.org/docs/stable/notes/broadcasting.html",)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        yield from look(self, trace, _see, "no prediction and target were stretched against each other")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        still, error = flat(60, 11.5), Severity.ERROR
        return (
            fires("[8, 1] against [8] in mse_loss", sample_recorded(_function((8, 1), (8,)), loss=still), error),
            fires("[8] against [8, 1] by hand", sample_recorded(_by_hand((8,), (8, 1)), loss=still), error),
            fires("[8, 1] against [8] by hand", sample_recorded(_by_hand((8, 1), (8,)), loss=[11.5]), error),
            fires("an image without its channel", sample_recorded(_by_hand((8, 1, 5, 5), (8, 5, 5)))),
            fires("an advantage times a log-probability", sample_recorded(_by_hand((8, 1), (8,), how="mul"))),
            silent("near miss: equal shapes", sample_recorded(_by_hand((8, 1), (8, 1)))),
            silent("near miss: one target, five hypotheses", sample_recorded(_function((8, 5), (8, 1)))),
            silent("near miss: quantiles [8, 5, 1] and [8, 1, 5]", sample_recorded(_by_hand((8, 5, 1), (8, 1, 5)))),
            silent("near miss: pairs of predictions", sample_recorded(_by_hand((8, 1), (8,), live=True))),
            silent("near miss: an axis made on purpose", sample_recorded(_by_hand((8, 1), (8,), made="unsqueeze"))),
            silent("near miss: a kernel", sample_recorded(_by_hand((8,), (8, 1), then="exp"))),
            silent("near miss: a minimum over pairs", sample_recorded(_by_hand((8,), (8, 1), then="amin"))),
            silent("near miss: thresholds of the model", sample_recorded(_by_hand((8, 1), (8,), role="buffer"))),
            silent("near miss: a mask over pairs", sample_recorded(_by_hand((8,), (8, 1), mask=True))),
        )


def _see(graph: StepGraph) -> Iterator[Sight]:
    tail = {id(op) for op in graph.tail}
    found = [b for b in graph.broadcasts if b.both and id(b.op) in tail and _across(b.left, b.right)]
    found = [b for b in found if b.op.kind in BROADCASTING_LOSSES or _compares(graph, b)]
    for b in found:
        if b.op.reduction in ("mean", "sum", "batchmean") or _all_pairs_count(graph, found):
            yield _sight(graph, b)


def _sight(graph: StepGraph, b: Broadcast) -> Sight:
    first = _predicted(graph, b.op, b.op.inputs[0])
    ours, theirs = (b.left, b.right) if first else (b.right, b.left)
    return Sight(
        op=b.op,
        message=(
            f"{b.op.kind} at {at(b.op)} stretches {list(ours)}, which depends on the parameters, and {list(theirs)} to "
            f"{list(b.result)}: each is compared with all of the others, in whatever order they stand"
        ),
        evidence=(
            Evidence("shapes that meet", f"{list(ours)} and {list(theirs)}", "equal"),
            Evidence("elements that come of it", prod(b.result), max(prod(b.left), prod(b.right)), "elements"),
        ),
    )


def _across(left: Shape, right: Shape) -> bool:
    """The same axes, but for one of length 1, which puts them across each other. Where both have as many axes, somebody
    has placed them."""
    return len(left) != len(right) and [n for n in left if n != 1] == [n for n in right if n != 1]


def _compares(graph: StepGraph, b: Broadcast) -> bool:
    """Whether one operand depends on what is trained and the other is data, or taken as data."""
    op = b.op
    if op.kind not in PRODUCTS_AND_DIFFERENCES:
        return False
    live = [_predicted(graph, op, n) for n in op.inputs[:2]]
    if live[0] == live[1]:
        return False
    ours, theirs = op.inputs[:2] if live[0] else op.inputs[1::-1]
    sources = [graph.origin(op, n, DETACHES) for n in (ours, theirs)]
    if sources[0] is sources[1] or (isinstance(sources[1], Leaf) and sources[1].role in ("buffer", "parameter")):
        return False
    return not _axis_on_purpose(graph.producers(op)[op.inputs.index(ours)])


def _predicted(graph: StepGraph, op: Op, number: int) -> bool:
    """Whether it depends on what is trained, or did before it was detached, as a value in an advantage is."""
    source = graph.origin(op, number)
    detached = isinstance(source, Op) and source.kind in DETACHES and graph.differentiable(source, source.inputs[0])
    return detached or graph.differentiable(op, number)


def _axis_on_purpose(made: Op | Leaf) -> bool:
    """x.unsqueeze(1), x[:, None], x.sum(1, keepdim=True)."""
    if isinstance(made, Leaf):
        return False
    indexed = made.kind == "getitem" and None in _items(made.arguments)
    return made.kind == "unsqueeze" or indexed or made.arguments.get("keepdim") is True


def _items(arguments: Mapping[str, Any]) -> list[Any]:
    key = arguments.get("key", ...)
    return key if isinstance(key, list) else [key]


def _all_pairs_count(graph: StepGraph, found: list[Broadcast]) -> bool:
    """Whether all that becomes of the stretched results is arithmetic, and then a sum."""
    large = min(prod(b.result) for b in found)
    inside = {id(b.op): b.op for b in found}
    made = {n for op in inside.values() for n in op.outputs}
    open_ = list(inside.values())
    while open_:
        for user in graph.users(open_.pop()):
            if user.kind in SUMS or id(user) in inside:
                continue
            if user.kind not in PLAIN:
                return False
            inside[id(user)] = user
            made.update(user.outputs)
            open_.append(user)
    return all(n in made or prod(graph.values[n].shape) < large for op in inside.values() for n in op.inputs)


def _function(ours: Shape, theirs: Shape) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", *ours[:-1], 6), "head", ours[-1])
    return step.graph(step.loss("mse_loss", out, step.leaf("target", "", *theirs), reduction="mean"))


def _by_hand(
    ours: Shape,
    theirs: Shape,
    *,
    how: str = "sub",
    role: str = "constant",
    live: bool = False,
    made: str = "view",
    then: str = "",
    mask: bool = False,
) -> StepGraph:
    """mean((prediction - target) ** 2) and the like."""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 1)
    out = step.call(T + made, out, shape=ours)
    target = step.linear(step.leaf("input", "y", 8, 6), "other", 1) if live else step.leaf(role, "", *theirs)
    target = step.call(T + "view", target, shape=theirs) if live else target
    table = broadcast_shape(ours, theirs) or ours
    away = step.call(T + how, out, target, shape=table)
    away = step.like(T + "pow", away)
    away = step.like(F + then, away) if then else away
    away = step.like(T + "mul", away, step.leaf("constant", "", *table)) if mask else away
    return step.graph(step.call(T + "mean", away, shape=()))
