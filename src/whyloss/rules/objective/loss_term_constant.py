"""loss-term-constant."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.run import Run
from whyloss.core.sample_graph import SampleGraph, T, figures
from whyloss.core.step_graph import DETACHES, EXITS, FLAT, Leaf, Op, State, StepGraph
from whyloss.core.terms import Term, terms
from whyloss.rules.recorded import Sight, at, look, named, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent

SAME = 1e-5  # of a number that went through float32
DIFFERENT = 1e-3
PLAIN = (0.0, 1.0, -1.0, 0.5)  # numbers that need not have been read anywhere


@dataclass(frozen=True)
class LossTermConstant(Rule):
    """A term of the loss has no gradient: it is computed from what is trained, and changes nothing.

    ## What it detects
    In a recorded step, a number that is added to the loss beside terms with a gradient, was computed from trained
    parameters, and has lost its gradient on the way: by `detach`, `.item()`, `torch.tensor(...)`, `no_grad`, an
    argmax, a comparison, or `autograd.grad` without `create_graph=True`.
    ## Why it matters
    The term is in the number that is printed, and in no gradient. Whatever its weight, it has no effect.
    ## What else looks like this
    Terms that were never computed from anything trained: margins, targets' own entropy, a frozen network's penalty.
    What a teacher or a target network gives without gradient is an info. A term minus a copy of itself keeps a value
    and is meant; masks, baselines and weights are factors and no terms.
    ## What to do
    Compute the term from the tensors themselves, or leave it out of the loss and log it apart.
    """

    name = "loss-term-constant"
    boundary = Boundary.OBJECTIVE
    explains = ("plateau-high", "overfitting", "underfitting")
    change = "Remove what ends the gradient of this term, or take the term out of the loss."
    verify = "Run again: the term requires grad (term.requires_grad is True)."

    def check(self, run: Run) -> Iterator[Outcome]:
        alone = len(run.traces) + len(run.idle) == 1
        for trace in run.traces:
            numbers = list(_returned(trace.graphs)) if trace.graphs else []

            def see(graph: StepGraph, numbers: list[tuple[Op, Op, float]] = numbers) -> Iterator[Sight]:
                yield from _see(graph, alone)
                yield from (_number_sight(*n) for n in numbers if n[0] in graph.ops)

            yield from look(self, trace, see, "each term had a gradient, or needs none,")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        warning = Severity.WARNING
        return (
            fires("a detached penalty", sample_recorded(_step(T + "detach")), warning),
            fires("named at the first update", sample_recorded(_step(T + "detach"), loss=[2.0]), warning),
            fires("a penalty on an argmax", sample_recorded(_step(T + "argmax", dtype="int64")), warning),
            fires("a penalty without grad mode", sample_recorded(_step("torch.relu", grad=False)), warning),
            fires("a number from item()", sample_recorded(_number(), _number(0.71)), warning),
            silent("near miss: a penalty with a gradient", sample_recorded(_step("torch.relu"))),
            silent("near miss: a penalty on fixed data", sample_recorded(_step(T + "detach", on="x"))),
            silent("near miss: a constant", sample_recorded(_step(on="constant"))),
            silent("near miss: a teacher's entropy", sample_recorded(_step("torch.relu", grad=False, layer="teacher"))),
            silent("near miss: a term minus its copy", sample_recorded(_minus_itself())),
            silent("near miss: another number", sample_recorded(_number(added=3.0))),
        )


def _see(graph: StepGraph, alone: bool) -> Iterator[Sight]:
    parts = terms(graph)
    live = [t for t in parts if t.live]
    if not live:
        return
    for term in parts:
        if not term.live and term.single and isinstance(term.source, Op) and term.taken is not None:
            yield from _constant(graph, term, alone)


def _constant(graph: StepGraph, term: Term, alone: bool) -> Iterator[Sight]:
    flow = graph.flow
    behind = flow.behind(term.state)
    cuts = [k for k in flow.ended if any(s in behind for s in flow.written[k])]
    if not cuts or _copies(graph, flow.calls[cuts[-1]]):
        return
    above = {s for k in cuts for s in flow.ended[k]}
    trained = [leaf for leaf in graph.leaves if leaf.role == "parameter" and _under(graph, leaf, above)]
    reached = {leaf.value for leaf in graph.reaching}
    ours = [leaf for leaf in trained if leaf.value in reached]
    last = flow.calls[cuts[-1]]
    on_purpose = not alone and last is term.source and last.kind in DETACHES
    if not trained or not isinstance(term.source, Op):
        return
    yield _sight(graph, term, last, (ours or trained)[0].name, mild=not ours or on_purpose)


def _under(graph: StepGraph, leaf: Leaf, states: set[State]) -> bool:
    return graph.values[leaf.value].requires_grad and any((-1, leaf.value) in graph.flow.behind(s) for s in states)


def _copies(graph: StepGraph, cut: Op) -> bool:
    """x - x.detach(), or a weight made of x.detach(): a number that is in the loss with its gradient, too."""
    if cut.kind not in DETACHES or prod(graph.values[cut.inputs[0]].shape) != 1:
        return False
    return graph.flow.given[graph.flow.place(cut)][cut.inputs[0]] in graph.flow.differentiated


def _sight(graph: StepGraph, term: Term, cut: Op, parameter: str, *, mild: bool) -> Sight:
    looks = graph.values[term.state[1]].statistics
    value = looks.mean if looks is not None else "not known"
    whose = (
        "of a network that the loss does not train" if mild else f"although {parameter or 'a parameter'} is behind it"
    )
    assert isinstance(term.source, Op)
    return Sight(
        op=term.source if mild else cut,
        message=f"a term of the loss ({named(term.source)}) has no gradient, {whose}: {cut.name} at {at(cut)} ends it",
        evidence=(
            Evidence("gradients that the term gives", 0, 1, "tensors"),
            Evidence("value of the term", value),
        ),
        severity=Severity.INFO if mild else Severity.WARNING,
    )


def _number_sight(op: Op, read: Op, number: float) -> Sight:
    return Sight(
        op=read,
        message=f"the number {number:.4g} that is added to the loss at {at(op)} was read out of a tensor by "
        f"{named(read)}, and has no gradient",
        evidence=(Evidence("gradients that the term gives", 0, 1, "tensors"), Evidence("value of the term", number)),
        severity=Severity.WARNING,
    )


def _added(graph: StepGraph) -> Iterator[tuple[Op, float]]:
    """Numbers, and constants made of them, that are added to what has a gradient."""
    for term in terms(graph):
        op = term.taken
        number = op.arguments.get("other") if op is not None else None
        if op is not None and term.live and isinstance(number, float) and number not in PLAIN:
            yield op, number
        if op is not None and not term.live:
            made = [graph.values[n].statistics for k, n in graph.flow.behind(term.state) if _starts(graph, k, n)]
            yield from ((op, looks.low) for looks in made if looks is not None and looks.low == looks.high)


def _starts(graph: StepGraph, k: int, number: int) -> bool:
    """Whether no tensor is behind it: a constant, or torch.tensor(number)."""
    leaf = graph.flow.leaves.get(number)
    return not graph.flow.calls[k].inputs if k >= 0 else leaf is not None and leaf.role == "constant"


def _read(graph: StepGraph) -> dict[Place, list[tuple[Op, float]]]:
    """By line: the calls that read a number out of a tensor with a gradient, and what they read."""
    found: dict[Place, list[tuple[Op, float]]] = {}
    for op in graph.aside:
        looks = graph.values[op.inputs[0]].statistics if op.name in EXITS and op.inputs else None
        if looks is not None and looks.low == looks.high and graph.differentiable(op, op.inputs[0]):
            found.setdefault(op.place, []).append((op, looks.low))
    return found


def _returned(graphs: tuple[StepGraph, ...]) -> Iterator[tuple[Op, Op, float]]:
    """Numbers that are added and were read out of the same step: equal, or in one proportion in steps that differ."""
    added = [{op.place: (op, number) for op, number in _added(g)} for g in graphs]
    read = [_read(g) for g in graphs]
    for where in added[0]:
        for line in read[0]:
            there = [(a[where], r[line]) for a, r in zip(added, read, strict=True) if where in a and line in r]
            once = min(len(calls) for _, calls in there)  # what was read in the steps before may stand there, too
            pairs = [(number, sum(v for _, v in calls[-once:])) for (_, number), calls in there]
            if all(y for _, y in pairs) and _proportional(pairs):
                for (op, number), calls in there:
                    yield op, calls[-1][0], number


def _proportional(pairs: list[tuple[float, float]]) -> bool:
    ratios = [x / y for x, y in pairs]
    same = all(abs(r - ratios[0]) <= SAME * abs(ratios[0]) for r in ratios)
    differ = any(abs(y - pairs[0][1]) > DIFFERENT * abs(y) for _, y in pairs)
    return same and (differ or abs(ratios[0] - 1.0) <= SAME)


def _step(*calls: str, on: str = "", layer: str = "head", dtype: str = "float32", **more: bool) -> StepGraph:
    """Cross-entropy plus the mean of a linear layer's output, behind these calls."""
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 6)
    out = step.linear(x, "head", 10)
    loss = step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64"))
    if on == "constant":
        return step.graph(step.like(T + "add", loss, step.leaf("constant", "")))
    term = x if on == "x" else out if layer == "head" else step.linear(x, layer, 10, **more)
    for call in calls:
        discrete = call.rpartition(".")[2] in FLAT | DETACHES | {"argmax"}
        term = step.like(call, term, dtype=dtype, live=False if discrete else None, **more)
    penalty = step.call(T + "mean", step.like(T + "float", term), shape=())
    return step.graph(step.like(T + "add", loss, step.like(T + "mul", penalty, arguments={"other": 0.1})))


def _minus_itself() -> StepGraph:
    """loss + (term - term.detach())"""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    loss = step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64"))
    term = step.call(T + "mean", out, shape=())
    zero = step.like(T + "sub", term, step.like(T + "detach", term, live=False))
    return step.graph(step.like(T + "add", loss, zero))


def _number(value: float = 0.37, *, added: float | None = None) -> StepGraph:
    """loss + term.item()"""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    loss = step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64"))
    term = step.call(T + "mean", out, shape=(), aside=True, statistics=figures(value, value))
    step.call(T + "item", term, out=(), aside=True)
    return step.graph(step.like(T + "add", loss, arguments={"other": value if added is None else added}))
