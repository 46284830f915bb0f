"""missing-nonlinearity."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.run import Trace
from whyloss.core.sample import falling, flat, sample_modules
from whyloss.core.sample_graph import F, SampleGraph
from whyloss.core.step_graph import (
    BACKWARD,
    BIAS_FIRST,
    DROPOUTS,
    LIKE,
    PRODUCTS,
    RESHAPES,
    WEIGHT_SECOND,
    AffinePair,
    Leaf,
    Op,
    StepGraph,
    names,
)
from whyloss.rules.recorded import NEAR, UPDATES, Sight, look, named, sample_recorded, way_left
from whyloss.rules.rule import Example, Rule, fires, silent

AFFINE = WEIGHT_SECOND | BIAS_FIRST | PRODUCTS
LINEAR = names(
    """
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d add avg_pool1d avg_pool2d avg_pool3d batch_norm cat
    concat div flip interpolate mean mul multiply neg pad pixel_shuffle pixel_unshuffle roll stack sub sum truediv
    upsample
    """
)
ACTIVATIONS = names(
    """
    CELU ELU GELU Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 RReLU SELU SiLU Sigmoid
    Softplus Softsign Tanh
    """
)


@dataclass(frozen=True)
class MissingNonlinearity(Rule):
    """Affine layers follow one another with nothing between: together they are one linear map.

    ## What it detects
    In a recorded step, pairs of affine calls of which the second is fed by the first through nothing but reshapes,
    dropout, sums and averages, where the layer between is no narrower than what lies around it. If that is so of the
    whole network, it is one linear map of its input.
    ## Why it matters
    Depth without an activation adds parameters and nothing else: what a single layer can't separate stays so.
    ## What else looks like this
    Low-rank factors (LoRA, a bottleneck narrower than both sides, a linear autoencoder), output projections of
    attention, depthwise convolutions before pointwise ones, an embedding before a layer. A network that is linear by
    design and comes near its least loss, and single pairs inside a network with activations, are an info.
    ## What to do
    Put an activation between the two, or leave one of them out. Those that the model has and never calls are named.
    """

    name = "missing-nonlinearity"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "lr-too-low"),
        *("lr-limited-plateau", "lr-too-high"),
    )
    change = "Put an activation (torch.relu, nn.GELU, …) between these two layers."
    verify = "Run again: an activation is called between them, and the loss falls below what a linear model reaches."

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        left, poor = way_left(trace, 0.0), ends_poorly(trace)
        well = left <= NEAR if left is not None else trace.updates >= UPDATES and not poor
        idle = [m for m in trace.modules if m.order is None and m.kind in ACTIVATIONS]
        uncalled = f"; {idle[0].path} ({idle[0].kind}) is never called" if idle else ""

        def see(graph: StepGraph) -> Iterator[Sight]:
            pairs = [pair for pair in graph.between_affine if _nothing_between(graph, pair)]
            if pairs and _linear(graph):
                narrow = all(_narrow(graph, pair) for pair in pairs)
                severity = Severity.INFO if narrow or well else Severity.WARNING
                yield _whole(graph, pairs, severity, uncalled)
                return
            bare = [pair for pair in pairs if not _narrow(graph, pair) and not _projects(graph, pair.first)]
            most = len(bare) > 1 and 2 * len(bare) > len(graph.between_affine)
            severity = Severity.WARNING if (poor and most) or (idle and not well) else Severity.INFO
            yield from (_one(pair, severity, uncalled) for pair in bare)

        yield from look(self, trace, see, "an activation stood between affine layers")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        poor, warning = flat(60, 2.0), Severity.WARNING
        unused = [replace(m, order=None) if m.kind == "ReLU" else m for m in sample_modules()]
        lost = _step((20, 64, 64, 10), relu=(0,))
        half, three = falling(60, 2.3, 0.9), _step((20, 64, 64, 64, 10), relu=(0,))
        return (
            fires("three layers, no activation", sample_recorded(_step((20, 64, 64, 10)), loss=poor), warning),
            fires("named at the first update", sample_recorded(_step((20, 64, 64, 10)), loss=[2.3]), warning),
            fires("dropout alone between", sample_recorded(_step((20, 64, 10), between="dropout"), loss=poor), warning),
            fires("two of three are missing", sample_recorded(three, loss=poor), warning),
            fires("the model has one it never calls", sample_recorded(lost, modules=unused, loss=half), warning),
            silent("near miss: activations", sample_recorded(_step((20, 64, 64, 10), relu=(0, 1)), loss=poor)),
            silent(
                "near miss: linear by design", sample_recorded(_step((20, 64, 64, 10)), loss=falling(200, 2.3, 0.1))
            ),
            silent("near miss: a single pair among others", sample_recorded(lost, loss=poor)),
            silent("near miss: low rank", sample_recorded(_step((64, 4, 64, 10), relu=(1,)), loss=poor)),
            silent("near miss: a linear autoencoder", sample_recorded(_step((64, 3, 64)), loss=poor)),
            silent("near miss: a projection after attention", sample_recorded(_attention(), loss=poor)),
            silent("near miss: a single layer", sample_recorded(_step((20, 10)), loss=poor)),
        )


def _nothing_between(graph: StepGraph, pair: AffinePair) -> bool:
    return all(op.kind in LINEAR for op in pair.between) and not _separable(graph, pair)


def _separable(graph: StepGraph, pair: AffinePair) -> bool:
    """Depthwise before pointwise, or a kernel in two parts, 1 × k and k × 1."""
    for op in (pair.first, pair.second):
        groups = op.arguments.get("groups", 1)
        weight = op.tensors.get("weight")
        kernel = graph.values[weight].shape[2:] if weight is not None and op.kind.startswith("conv") else ()
        if groups not in (1, None) or len(set(kernel)) > 1:
            return True
    return False


def _narrow(graph: StepGraph, pair: AffinePair) -> bool:
    """Whether the layer between is narrower than both sides."""
    before, inner = _widths(graph, pair.first)
    _, after = _widths(graph, pair.second)
    return inner < min(before, after)


def _widths(graph: StepGraph, op: Op) -> tuple[int, int]:
    """How many numbers go into one output of a layer, and how many come out of it, for each position."""
    weight = op.tensors.get("weight")
    if op.kind.startswith("conv") and weight is not None:
        shape = graph.values[weight].shape
        return prod(shape[1:]), shape[0]
    given = max((graph.values[n].shape[-1:] for n in op.inputs[:1]), default=())
    made = graph.values[op.outputs[0]].shape[-1:] if op.outputs else ()
    return prod(given), prod(made)


def _projects(graph: StepGraph, op: Op) -> bool:
    """Whether it is given what attention makes."""
    source = graph.origin(op, op.inputs[0])
    return isinstance(source, Op) and source.kind in PRODUCTS | {"scaled_dot_product_attention"}


def _linear(graph: StepGraph) -> bool:
    """Whether all that is made with a gradient before the loss begins is linear."""
    tail = {id(op) for op in graph.tail}
    made = [op for op in graph.ops if id(op) not in tail and any(graph.values[n].requires_grad for n in op.outputs)]
    linear = AFFINE | LINEAR | RESHAPES | DROPOUTS | LIKE
    return all(op.kind in linear and not _gates(graph, op) for op in made if op.name != BACKWARD)


def _gates(graph: StepGraph, op: Op) -> bool:
    """A product of two results, which is not linear in the input."""
    made = [s for s in graph.producers(op) if not (isinstance(s, Leaf) and s.role in ("parameter", "buffer"))]
    return op.kind in PRODUCTS | {"mul", "multiply", "div", "truediv"} and len(made) > 1


def _whole(graph: StepGraph, pairs: list[AffinePair], severity: Severity, uncalled: str) -> Sight:
    layers = len({id(op) for pair in pairs for op in (pair.first, pair.second)})
    return Sight(
        op=pairs[0].second,
        message=f"nothing but linear calls stands between the {layers} affine layers, from {named(pairs[0].first)} on: "
        f"the network is one linear map of its input{uncalled}",
        evidence=(Evidence("activations between affine layers", 0, 1, "calls"), Evidence("affine layers", layers)),
        severity=severity,
    )


def _one(pair: AffinePair, severity: Severity, uncalled: str) -> Sight:
    return Sight(
        op=pair.second,
        message=f"no activation stands between {named(pair.first)} and {named(pair.second)}: together they are one "
        f"linear map{uncalled}",
        evidence=(Evidence("activations between them", 0, 1, "calls"),),
        severity=severity,
        certain=False,
    )


def _step(widths: tuple[int, ...], *, relu: tuple[int, ...] = (), between: str = "") -> StepGraph:
    """Linear layers of these widths; ReLU after those of these numbers."""
    step = SampleGraph()
    out = step.leaf("input", "x", 8, widths[0])
    for i, width in enumerate(widths[1:]):
        out = step.linear(out, f"fc{i + 1}", width)
        out = step.like(F + "relu", out) if i in relu else out
        out = step.like(F + between, out) if between and i < len(widths) - 2 else out
    return step.graph(step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64")))


def _attention() -> StepGraph:
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 16)
    weights = step.like(F + "softmax", step.linear(x, "q", 8), arguments={"dim": -1})
    mixed = step.call("torch.matmul", weights, step.linear(x, "v", 16), shape=(8, 16))
    out = step.linear(step.linear(mixed, "out", 16), "head", 10)
    return step.graph(step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64")))
