"""Reads the folder of a run into a Run, whatever state it was left in."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from whyloss.core.copies import Copy
from whyloss.core.errors import NothingToJudge
from whyloss.core.feed import Evaluation, Fed
from whyloss.core.kept import Kept
from whyloss.core.location import Located
from whyloss.core.probe import Probe
from whyloss.core.run import Facts, Module, Pending, Run, Table, Trace
from whyloss.core.series import NOT_OBSERVED, Series
from whyloss.core.step_graph import StepGraph
from whyloss.journal.events import (
    Built,
    Described,
    Detached,
    End,
    Limit,
    LossOp,
    Metrics,
    Order,
    Recorded,
    SkippedUpdate,
    Start,
    Waiting,
    of,
    read_events,
)
from whyloss.journal.folder import events_name, ranks
from whyloss.journal.graphs import read_graph
from whyloss.journal.rows import read_table

Events = Sequence[object]


def read_run(folder: str | Path, rank: int | None = None) -> Run:
    """The run in a folder, as the process of that rank saw it (default: the lowest there is).

    NothingToJudge where there is no journal, or none that can be read.
    """
    folder = Path(folder)
    rank = next(iter(ranks(folder)), 0) if rank is None else rank
    path = folder / events_name(rank)
    if not path.is_file():
        msg = f"{folder} holds no whyloss run ({path.name} is missing): give the folder that `whyloss run` printed"
        raise NothingToJudge(msg)
    events = read_events(path)
    described = of(events, Described)
    indices = sorted({d.trace for d in described})
    graphs, lost = _graphs(folder, rank, events)
    traces = tuple(
        _trace(folder, rank, [d for d in described if d.trace == i], events, graphs.get(i, ())) for i in indices
    )
    return Run(
        traces=tuple(t for t in traces if t.updates),
        idle=tuple(t for t in traces if not t.updates),
        pending=tuple(_pending(w) for w in of(events, Waiting)),
        skipped_updates=tuple((s.trace, s.step) for s in of(events, SkippedUpdate)),
        skipped_scales=tuple(s.scale for s in of(events, SkippedUpdate)),
        located=tuple(of(events, Located)),
        fed=next(reversed(of(events, Fed)), None),
        kept=tuple(of(events, Kept)),
        evaluations=tuple({e.index: e for e in of(events, Evaluation)}.values()),
        probes=tuple(of(events, Probe)),
        copies=tuple(of(events, Copy)),
        metrics=_metrics(folder, rank, events),
        facts=_facts(events, traces, lost),
    )


def _trace(folder: Path, rank: int, described: list[Described], events: Events, graphs: tuple[StepGraph, ...]) -> Trace:
    last = described[-1]
    segments = sorted({d.segment for d in described if d.segment >= 0})
    updates, samples = (
        _joined([read_table(folder / f"{name}-o{last.trace}-s{segment}-r{rank}.rows") for segment in segments])
        for name in ("updates", "samples")
    )
    return Trace(
        index=last.trace,
        optimizer=last.optimizer,
        place=last.place,
        step_place=last.step_place,
        settings=last.settings,
        groups=last.groups,
        model=last.model,
        tensors=last.tensors,
        modules=_modules(described),
        objectives=tuple(e.objective for e in of(events, LossOp) if e.trace == last.trace),
        orders=tuple(e.sequence for e in of(events, Order) if e.trace == last.trace),
        skips=last.skips,
        graphs=graphs,
        every=updates,
        sampled=samples,
    )


def _modules(described: list[Described]) -> tuple[Module, ...]:
    """The last description of each module; that it ran once is never forgotten."""
    modules: dict[str, Module] = {}
    for event in described:
        for module in event.modules:
            before = modules.get(module.path)
            modules[module.path] = before if before and before.order is not None and module.order is None else module
    return tuple(modules.values())


def _joined(tables: list[Table]) -> Table:
    """One table of several segments; what a segment had no column for was not observed."""
    tables = [t for t in tables if len(t.steps)]
    if len(tables) < 2:
        return tables[0] if tables else Table.empty()
    names = list(dict.fromkeys(name for t in tables for name in t.columns))
    columns = {name: i for i, name in enumerate(names)}
    parts: dict[str, list[Any]] = {"values": [], "low": [], "high": []}
    for table in tables:
        at = [columns[name] for name in table.columns]
        for part, blocks in parts.items():
            block = np.full((len(table.steps), len(names)), NOT_OBSERVED)
            block[:, at] = getattr(table, part)[:, list(table.columns.values())]
            blocks.append(block)
    steps = np.concatenate([t.steps for t in tables])
    order = np.argsort(steps, kind="stable")
    return Table(steps[order], columns, *(np.concatenate(parts[p])[order] for p in ("values", "low", "high")))


def _graphs(folder: Path, rank: int, events: Events) -> tuple[dict[int, tuple[StepGraph, ...]], tuple[str, ...]]:
    """The recorded steps of each trace in their order; and of those that can't be read, why."""
    graphs: dict[int, tuple[StepGraph, ...]] = {}
    lost: list[str] = []
    for trace, step in sorted({(e.trace, e.step) for e in of(events, Recorded)}):
        try:
            graphs[trace] = (*graphs.get(trace, ()), read_graph(folder, trace, step, rank))
        except NothingToJudge as error:
            lost.append(str(error))
    return graphs, tuple(lost)


def _pending(event: Waiting) -> Pending:
    return Pending(backwards=event.backwards, loss=event.loss, weights_changed=event.weights_changed, place=event.place)


def _metrics(folder: Path, rank: int, events: Events) -> dict[str, Series]:
    numbers = {name: number for event in of(events, Metrics) for name, number in event.tables.items()}
    tables = {name: read_table(folder / f"metric{number}-r{rank}.rows") for name, number in numbers.items()}
    return {n: Series(t.steps, t.values[:, 0], t.low[:, 0], t.high[:, 0]) for n, t in tables.items() if t.values.size}


def _facts(events: Events, traces: tuple[Trace, ...], lost: tuple[str, ...]) -> Facts:
    start = next(iter(of(events, Start)[-1:]), Start())
    described = of(events, Described)
    detached = of(events, Detached)
    first = next((t for trace in traces for t in trace.tensors if t.in_optimizer), None)
    how, error = _end(events)
    seconds, observer = _time(events, traces)
    return Facts(
        script=start.script,
        arguments=start.arguments,
        torch=start.torch,
        python=start.python,
        device=described[-1].device if described else "",
        dtype=first.dtype if first else "",
        seeds=start.seeds,
        optimizers_built=tuple(b.place for b in of(events, Built)),
        end=how,
        error=error,
        detached=detached[-1].reason if detached else "",
        seconds=seconds,
        observer_seconds=observer,
        limits=(*(e.reason for e in of(events, Limit)), *lost),
    )


def _end(events: Events) -> tuple[str, str]:
    ends = of(events, End)
    return (ends[-1].how, ends[-1].error) if ends else ("running", "")


def _time(events: Events, traces: tuple[Trace, ...]) -> tuple[float, float]:
    """Seconds in all and in the observer, as the process wrote them; where it could not, up to its last row."""
    ends = [e for e in of(events, End) if e.seconds is not None and e.observer_seconds is not None]
    if ends:
        return _finite(ends[-1].seconds), _finite(ends[-1].observer_seconds)
    last = [s for t in traces if (s := t.signal("seconds")) is not None]
    inside = [s for t in traces if (s := t.signal("observer/seconds")) is not None]
    total = sum(float(np.sum(s.values * np.diff(s.steps, append=s.steps[-1] + 1))) for s in inside)
    return _finite(max((s.last for s in last), default=0.0)), _finite(total)


def _finite(value: float | None) -> float:
    return value if value is not None and math.isfinite(value) else 0.0
