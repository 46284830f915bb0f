"""Reads the folder of a run into a Run, whatever state it was left in."""

import math
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from whyloss.core.errors import NothingToJudge
from whyloss.core.finding import Place
from whyloss.core.run import Call, Facts, Module, Objective, Pending, Run, Table, Tensor, Trace
from whyloss.core.series import NOT_OBSERVED, Series
from whyloss.journal.folder import events_name
from whyloss.journal.rows import read_table

Event = dict[str, Any]


def read_run(folder: Path, rank: int = 0) -> Run:
    """The run in a folder. NothingToJudge where there is no journal, or none that can be read."""
    path = folder / events_name(rank)
    if not path.is_file():
        msg = f"{folder} holds no whyloss run ({path.name} is missing): give the folder that `whyloss run` printed"
        raise NothingToJudge(msg)
    events = list(_events(path))
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_kind[event["event"]].append(event)
    indices = sorted({e["trace"] for e in by_kind["trace"]})
    traces = tuple(_trace(folder, rank, index, by_kind) for index in indices)
    return Run(
        traces=tuple(t for t in traces if t.updates),
        pending=tuple(_pending(e) for e in by_kind["pending"]),
        skipped_updates=tuple((e["trace"], e["step"]) for e in by_kind["skipped"]),
        metrics=_metrics(by_kind["metrics"]),
        facts=_facts(by_kind, traces),
    )


def _events(path: Path) -> Iterator[Event]:
    """The complete lines; a torn last line, or one that is no event, is passed over."""
    for line in path.read_bytes().split(b"\n"):
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError:
            continue
        if isinstance(event, dict) and isinstance(event.get("event"), str):
            yield event


def _trace(folder: Path, rank: int, index: int, by_kind: dict[str, list[Event]]) -> Trace:
    described = [e for e in by_kind["trace"] if e["trace"] == index]
    last = described[-1]
    segments = sorted({e["segment"] for e in described})
    tables = {
        name: _joined([folder / f"{name}-o{index}-s{segment}-r{rank}.rows" for segment in segments])
        for name in ("updates", "samples")
    }
    return Trace(
        index=index,
        optimizer=last["optimizer"],
        place=msgspec.convert(last["place"], Place),
        step_place=msgspec.convert(last["step_place"], Place),
        settings=last["settings"],
        groups=last["groups"],
        model=last["model"],
        tensors=msgspec.convert(last["tensors"], tuple[Tensor, ...]),
        modules=_modules(described),
        objectives=tuple(
            msgspec.convert(e["objective"], Objective) for e in by_kind["objective"] if e["trace"] == index
        ),
        orders=tuple(msgspec.convert(e["sequence"], tuple[Call, ...]) for e in by_kind["order"] if e["trace"] == index),
        every=tables["updates"],
        sampled=tables["samples"],
    )


def _modules(described: list[Event]) -> tuple[Module, ...]:
    """The last description of each module; that it ran once is never forgotten."""
    modules: dict[str, Module] = {}
    for event in described:
        for module in msgspec.convert(event["modules"], tuple[Module, ...]):
            before = modules.get(module.path)
            modules[module.path] = before if before and before.order is not None and module.order is None else module
    return tuple(modules.values())


def _joined(paths: list[Path]) -> Table:
    """One table of several segments; what a segment had no column for was not observed."""
    tables = [read_table(path) for path in paths if path.is_file()]
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
            block[:, at] = getattr(table, part)
            blocks.append(block)
    steps = np.concatenate([t.steps for t in tables])
    return Table(steps, columns, *(np.concatenate(parts[p]) for p in ("values", "low", "high")))


def _pending(event: Event) -> Pending:
    return Pending(
        backwards=event["backwards"],
        loss=float(event["loss"]),
        weights_changed=event["weights_changed"],
        place=msgspec.convert(event["place"], Place),
    )


def _metrics(events: list[Event]) -> dict[str, Series]:
    samples: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for event in events:
        for name, value in event["values"].items():
            samples[name].append((event["step"], float(value)))
    return {name: Series.of([v for _, v in s], [at for at, _ in s]) for name, s in samples.items()}


def _facts(by_kind: dict[str, list[Event]], traces: tuple[Trace, ...]) -> Facts:
    start = by_kind["start"][-1] if by_kind["start"] else {}
    end = by_kind["end"][-1] if by_kind["end"] else {}
    detached = by_kind["detached"][-1] if by_kind["detached"] else {}
    seconds, observer = _time(traces)
    first = next((t for trace in traces for t in trace.tensors if t.in_optimizer), None)
    return Facts(
        script=start.get("script", ""),
        arguments=tuple(start.get("arguments", ())),
        torch=start.get("torch", ""),
        python=start.get("python", ""),
        device=by_kind["trace"][-1].get("device", "") if by_kind["trace"] else "",
        dtype=first.dtype if first else "",
        seeds=tuple(start.get("seeds", ())),
        optimizers_built=tuple(msgspec.convert(e["place"], Place) for e in by_kind["built"]),
        end=end.get("how", "running"),
        error=end.get("error", ""),
        detached=detached.get("reason", ""),
        seconds=float(end.get("seconds", seconds)),
        observer_seconds=float(end.get("observer_seconds", observer)),
        limits=tuple(e["reason"] for e in by_kind["limit"]),
    )


def _time(traces: tuple[Trace, ...]) -> tuple[float, float]:
    """Seconds to the last row, and in the observer, where the end was never written."""
    last = [s for t in traces if (s := t.signal("seconds")) is not None]
    inside = [s for t in traces if (s := t.signal("observer/seconds")) is not None]
    total = sum(float(np.sum(s.values * np.diff(s.steps, append=s.steps[-1] + 1))) for s in inside)
    return max((s.last for s in last), default=0.0), total if math.isfinite(total) else 0.0
