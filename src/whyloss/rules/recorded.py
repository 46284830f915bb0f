"""What the rules on recorded steps share: each says what it sees in one graph, and one finding is made of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from whyloss.core.finding import Evidence, Outcome, Place, Severity
from whyloss.core.levels import baselines, own_loss
from whyloss.core.run import Run, Trace
from whyloss.core.sample import sample_run
from whyloss.core.sample_graph import SampleGraph, figures
from whyloss.core.series import fall
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import Leaf, Op, StepGraph
from whyloss.rules.rule import Rule

NEAR = 0.1  # of the way from a blind prediction's loss to the least possible one
UPDATES = 20  # below that a curve says nothing


@dataclass(frozen=True, kw_only=True)
class Sight:
    """What is wrong at a call of a recorded step."""

    op: Op
    message: str
    evidence: tuple[Evidence, ...]
    severity: Severity = Severity.ERROR
    certain: bool = True
    floor: float | None = None  # the least loss that can be reached like this
    overrides: Mapping[str, Any] = field(default_factory=dict)  # of the finding


def look(
    rule: Rule,
    trace: Trace,
    see: Callable[[StepGraph], Iterable[Sight]],
    nothing: str,
    excuse: Callable[[Sight], str] = lambda _: "",
) -> Iterator[Outcome]:
    """One finding for all that `see` gives, of its worst; `nothing` says what was looked at in vain. `excuse`: in words
    why the training does well all the same, which makes it an info."""
    if not trace.graphs:
        yield rule.skipped("no step of this optimizer was recorded")
        return
    seen = [(graph, sight) for graph in trace.graphs for sight in see(graph)]
    if not seen:
        count = len(trace.graphs)
        yield rule.passed(f"{nothing} in {count} recorded step{'s' if count > 1 else ''}")
        return
    _, worst = min(seen, key=lambda pair: list(Severity).index(pair[1].severity))
    same = [(graph, sight) for graph, sight in seen if sight.op.place == worst.op.place]
    steps = tuple(sorted({graph.step for graph, _ in same}))
    mild = excuse(worst) if worst.severity.alarm else ""
    yield rule.finding(
        worst.message + (f"; {mild}" if mild else ""),
        *(replace(e, steps=e.steps or steps) for e in worst.evidence),
        severity=Severity.INFO if mild else worst.severity,
        place=place_of(worst.op),
        first_step=steps[0],
        certain=worst.certain and any(graph.faithful for graph, _ in same),
        **worst.overrides,
    )


def place_of(op: Op) -> Place:
    return replace(op.place, module=op.module or None, op=op.name)


def named(source: Op | Leaf) -> str:
    """`torch.softmax at train.py:9`, for a message."""
    if isinstance(source, Leaf):
        return source.name or f"a tensor ({source.role})"
    name = source.name.replace("torch.nn.functional.", "F.").replace("torch.Tensor.", "Tensor.")
    where = f" in {source.module}" if source.module else ""
    return f"{name}{where}" + (f" at {at(source)}" if source.place.file else "")


def at(op: Op) -> str:
    file = (op.place.file or "").replace("\\", "/").rpartition("/")[2]
    return f"{file}:{op.place.line}" if file else op.name


def span(looks: Statistics | None) -> str:
    return f"{looks.low:.3g} … {looks.high:.3g}" if looks is not None else "not known"


def way_left(trace: Trace, floor: float) -> float | None:
    """Of the way from a blind prediction's loss to the least possible one, the share that was left at the end. None for
    fewer than 20 updates, and where the loss or the baseline is not known."""
    own, known = own_loss(trace), baselines(trace)
    result = fall(own) if own is not None else None
    if trace.updates < UPDATES or result is None or not known or known[0].value <= floor:
        return None
    return (result.end - floor) / (known[0].value - floor)


def near_floor(trace: Trace, sight: Sight) -> str:
    """In words, where the loss has come close to the least that it can reach."""
    left = way_left(trace, sight.floor) if sight.floor is not None else None
    if left is None or abs(left) > NEAR:  # below the least value: it is not this loss that was seen
        return ""
    return f"the loss came close to the least that it can reach all the same ({left:.0%} of the way left)"


def sample_recorded(*graphs: StepGraph, steps: tuple[int, ...] = (0, 1, 2, 30), updates: int = 60, **more: Any) -> Run:
    """A run with recorded steps: each graph at the steps after the one before it; the last of several at the rest."""
    updates = len(more["loss"]) if "loss" in more else updates
    which = [graphs[min(i, len(graphs) - 1)] for i in range(len(steps))] if graphs else []
    kept = tuple(replace(g, step=s) for g, s in zip(which, steps, strict=False) if s < updates)
    return sample_run(updates, graphs=kept, **more)


def step_through(
    kind: str = "tanh", *, mean: float = 0.0, std: float, hidden: bool = True, then: str = ""
) -> StepGraph:
    """A step whose loss comes through this activation, with the mean and the deviation of what that gives."""
    step = SampleGraph()
    h = step.linear(step.leaf("input", "x", 8, 4), "fc1", 6)
    fields: dict[str, Any] = {"statistics": figures(-1.0, 1.0, mean=mean, std=std), "module": "act1"}
    out = step.like(f"torch.{kind}", h, **fields)
    if then:
        out = step.like(f"torch.{then}", out, h)
    out = step.linear(out, "head", 6) if hidden else out
    return replace(step.graph(step.loss("mse_loss", out, step.leaf("target", "", 8, 6))), training=True)
