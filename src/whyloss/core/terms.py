"""The sum that a loss is: its summands, and with which factor each goes into what backward was given."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

from whyloss.core.step_graph import LOSSES, RESHAPES, Leaf, Op, State, StepGraph

SUMS = frozenset(("add", "radd", "iadd"))
DIFFERENCES = frozenset(("sub", "subtract", "isub"))
FACTORS = frozenset(("mul", "multiply", "rmul", "imul"))
QUOTIENTS = frozenset(("div", "divide", "truediv", "true_divide", "idiv", "itruediv"))
TOTALS = frozenset(("mean", "sum", "nanmean", "nansum", "stack", "cat", "concat"))
MOST = 2000  # summands
NEGATIVES = frozenset(("neg", "negative"))


@dataclass(frozen=True)
class Term:
    """A summand. `factor`: that of means and sums left aside; NaN where it is not one known number."""

    state: State
    source: Op | Leaf
    factor: float
    live: bool  # a gradient flows into it
    single: bool  # one number
    taken: Op | None  # the call of the sum that takes it; None for the whole loss

    @property
    def loss(self) -> bool:
        """Whether a loss function of torch made it."""
        return isinstance(self.source, Op) and self.source.kind in LOSSES


@dataclass(frozen=True)
class _Part:
    state: State
    factor: float
    taken: Op | None


def terms(graph: StepGraph) -> tuple[Term, ...]:
    """Back from what backward was given through sums, differences, means and constant factors; no further where there
    is no gradient any more."""
    found: dict[State, Term] = {}
    open_ = [_Part(state, 1.0, None) for state in graph.flow.roots]
    seen: set[tuple[State, float | None]] = set()
    while open_:
        part = open_.pop(0)
        key = part.state, None if math.isnan(part.factor) else part.factor
        if key in seen or len(seen) > MOST:
            continue
        seen.add(key)
        parts = list(_parts(graph, part))
        open_ += parts
        if not parts:
            found[part.state] = _term(graph, part)
    return tuple(found.values())


def _term(graph: StepGraph, part: _Part) -> Term:
    flow, (k, number) = graph.flow, part.state
    leaf = flow.leaves.get(number) or Leaf(value=number, role="constant")
    return Term(
        state=part.state,
        source=flow.calls[k] if k >= 0 else leaf,
        factor=part.factor,
        live=flow.live(part.state),
        single=prod(graph.values[number].shape) == 1,
        taken=part.taken,
    )


def _parts(graph: StepGraph, part: _Part) -> Iterator[_Part]:
    """What the call that made a summand adds up; nothing where it does something else."""
    k = part.state[0]
    op = graph.flow.calls[k] if k >= 0 else None
    if op is None or op.kind in LOSSES or not op.inputs or not graph.flow.live(part.state):
        return
    states = [graph.flow.given[k][n] for n in op.inputs]
    kind = op.kind
    if kind in SUMS | TOTALS and not _scaled(op):
        yield from (_Part(s, part.factor, op) for s in states)
    elif kind in DIFFERENCES and not _scaled(op):
        yield from (_Part(s, -part.factor if i else part.factor, op) for i, s in enumerate(states))
    elif kind == "rsub" and not _scaled(op):
        yield from (_Part(s, part.factor if i else -part.factor, op) for i, s in enumerate(states))
    elif kind in NEGATIVES | RESHAPES:
        yield _Part(states[0], -part.factor if kind in NEGATIVES else part.factor, part.taken)
    elif kind in FACTORS | QUOTIENTS:
        yield from _scaling(graph, op, states, part)


def _scaled(op: Op) -> bool:
    """x.add(y, alpha=…)."""
    return bool(op.arguments.get("alpha", 1) != 1)


def _scaling(graph: StepGraph, op: Op, states: list[State], part: _Part) -> Iterator[_Part]:
    """The one factor through which a gradient flows; a quotient only by its numerator."""
    live = [s for s in states if graph.flow.live(s)]
    by = math.nan
    if len(states) == 1:
        live, by = states, _number(op.arguments.get("other"))
    elif len(live) == 1 and (op.kind in FACTORS or live[0] == states[0]):
        by = _value(graph, next((s for s in states if s != live[0]), live[0])[1])
    if len(live) == 1:
        yield _Part(live[0], part.factor * (by if op.kind in FACTORS or not by else 1 / by), part.taken)


def _number(given: Any) -> float:
    return float(given) if isinstance(given, int | float) else math.nan


def _value(graph: StepGraph, number: int) -> float:
    """Of a tensor that holds one number, or the same throughout."""
    looks = graph.values[number].statistics
    return looks.low if looks is not None and looks.low == looks.high else math.nan
