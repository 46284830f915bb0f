"""Writes a run as it happens. Every line and row is one write: a killed process loses nothing that was complete."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from whyloss.core.plain import speakable
from whyloss.core.series import Floats
from whyloss.core.step_graph import StepGraph
from whyloss.journal.folder import claim, events_name, ranks, replace_file
from whyloss.journal.graphs import graph_name, to_bytes
from whyloss.journal.rows import RowWriter, write_whole

MOST_METRICS = 256  # names given to run.log(): each is a file


class Journal:
    """The folder of one process of a run. Raises OSError when the disk is full or gone: the caller stops observing."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder, self.rank = claim(folder, rank), rank
        self._events = os.open(self.folder / events_name(rank), os.O_WRONLY | os.O_APPEND)
        self._tables: dict[str, RowWriter] = {}
        self._metrics: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._full = False

    def event(self, kind: str, **data: Any) -> None:
        """One line: {"event": kind, …}. NaN and infinities are written as strings, since JSON has none."""
        if kind == "metrics":
            self.metrics(**data)
            return
        write_whole(self._events, line(kind, **data))

    def table(self, name: str, columns: Sequence[str]) -> None:
        """Opens a table of this process: <name>-r<rank>.rows."""
        columns = list(speakable(list(columns)))
        self._tables[name] = RowWriter(self.folder / f"{name}-r{self.rank}.rows", columns)

    def row(self, table: str, step: int, values: Floats) -> None:
        self._tables[table].append(step, values)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """A row in the table of each name. A step that lies behind the last one of its name counts as that one."""
        new = [name for name in values if name not in self._metrics]
        room = MOST_METRICS - len(self._metrics)
        self._open_metrics(new[:room])
        if len(new) > room and not self._full:
            self._full = True
            self.event("limit", reason=f"run.log() was given more than {MOST_METRICS} names: the rest is left out")
        for name in values.keys() & self._metrics.keys():
            self._last[name] = max(step, self._last.get(name, 0))
            self.row(f"metric{self._metrics[name]}", self._last[name], np.array([float(values[name])]))

    def _open_metrics(self, names: Sequence[str]) -> None:
        for name in names:
            self._metrics[name] = len(self._metrics)
            self.table(f"metric{self._metrics[name]}", [name])
        if names:
            write_whole(self._events, line("metrics", tables={name: self._metrics[name] for name in names}))

    def graph(self, graph: StepGraph) -> None:
        """The graph of a recorded step in a file of its own, then the line that says so."""
        name = graph_name(graph.trace, graph.step, self.rank)
        replace_file(self.folder / name, to_bytes(graph))
        self.event("graph", trace=graph.trace, step=graph.step)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        os.close(self._events)
        self._tables = {}


def line(kind: str, **data: Any) -> bytes:
    return msgspec.json.encode(speakable({"event": kind} | data)) + b"\n"


def add_end(folder: Path, how: str, error: str = "") -> None:
    """Notes how a run ended whose process could not do so itself. Raises OSError."""
    file = os.open(folder / events_name(ranks(folder)[0]), os.O_WRONLY | os.O_APPEND)
    try:
        write_whole(file, b"\n" + line("end", how=how, error=error))  # the last line may be torn
    finally:
        os.close(file)
