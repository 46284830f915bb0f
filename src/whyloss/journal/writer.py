"""Writes a run as it happens. Every line and row is one write: a killed process loses nothing that was complete."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from whyloss.core.series import Floats
from whyloss.journal.folder import claim, events_name
from whyloss.journal.rows import RowWriter, _write


class Journal:
    """The folder of one process of a run. Raises OSError when the disk is full or gone: the caller stops observing."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.folder, self.rank = claim(folder, rank), rank
        self._events = os.open(self.folder / events_name(rank), os.O_WRONLY | os.O_APPEND)
        self._tables: dict[str, RowWriter] = {}

    def event(self, kind: str, **data: Any) -> None:
        """One line: {"event": kind, …}. NaN and infinities are written as strings, since JSON has none."""
        _write(self._events, msgspec.json.encode({"event": kind} | _speakable(data)) + b"\n")

    def table(self, name: str, columns: Sequence[str]) -> None:
        """Opens a table of this process: <name>-r<rank>.rows."""
        self._tables[name] = RowWriter(self.folder / f"{name}-r{self.rank}.rows", list(columns))

    def row(self, table: str, step: int, values: Floats) -> None:
        self._tables[table].append(step, values)

    def close(self) -> None:
        for table in self._tables.values():
            table.close()
        os.close(self._events)
        self._tables = {}


def _speakable(value: Any) -> Any:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, dict):
        return {k: _speakable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_speakable(v) for v in value]
    return value
