"""Tables on disk: a JSON header line, then fixed-width rows that end in a CRC. A torn last row is dropped by the reader.

A file is bounded. When it holds `limit` rows, the older half of what follows the first `head` rows moves to a second
file in which each row stands for several steps: their mean, lowest and highest value. When that one is full, its
neighbouring rows are merged, so the resolution of the past halves and nothing extreme is lost.
"""

import os
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from whyloss.core.run import Table
from whyloss.core.series import NOT_OBSERVED, Floats, absent, not_observed

HEAD = 256
LIMIT = 4096


def raw_type(columns: int) -> np.dtype[Any]:
    return np.dtype([("step", "<u8"), ("values", "<f8", (columns,)), ("crc", "<u4")])


def thin_type(columns: int) -> np.dtype[Any]:
    parts = [(name, "<f8", (columns,)) for name in ("values", "low", "high")]
    return np.dtype([("step", "<u8"), ("last", "<u8"), *parts, ("crc", "<u4")])


def seal(rows: np.ndarray) -> bytes:
    """The rows as bytes, each with the CRC-32 of what stands before it."""
    width = rows.dtype.itemsize
    data = bytearray(rows.tobytes())
    for start in range(0, len(data), width):
        crc = zlib.crc32(memoryview(data)[start : start + width - 4])
        data[start + width - 4 : start + width] = crc.to_bytes(4, "little")
    return bytes(data)


class RowWriter:
    """Appends rows of one table, each in a single write."""

    def __init__(self, path: Path, columns: list[str], *, head: int = HEAD, limit: int = LIMIT) -> None:
        self.path, self.columns, self.head, self.limit = path, columns, head, limit
        self.thin_path = path.with_suffix(".thin")
        self._type = raw_type(len(columns))
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        self._count = 0
        _write(self._file, self._header())

    def append(self, step: int, values: Floats) -> None:
        row = np.zeros(1, self._type)
        row["step"], row["values"] = step, values
        _write(self._file, seal(row))
        self._count += 1
        if self._count >= self.limit:
            self._thin()

    def close(self) -> None:
        os.close(self._file)

    def _header(self, **more: Any) -> bytes:
        return msgspec.json.encode({"format": 1, "columns": self.columns} | more) + b"\n"

    def _thin(self) -> None:
        rows = read_rows(self.path, raw_type)[1]
        cut = self.head + (len(rows) - self.head) // 2
        old = rows[self.head : cut]
        past = np.zeros(len(old), thin_type(len(self.columns)))
        past["step"] = past["last"] = old["step"]
        for part in ("values", "low", "high"):
            past[part] = old["values"]
        if self.thin_path.exists():
            past = np.concatenate([read_rows(self.thin_path, thin_type)[1], past])
        while len(past) > self.limit // 2:
            past = _halve(past)
        # the thinned past first: a reader that finds a step in both files believes the thinned one
        _replace(self.thin_path, self._header(thinned=True) + seal(past))
        keep = np.concatenate([rows[: self.head], rows[cut:]])
        _replace(self.path, self._header() + seal(keep))
        os.close(self._file)
        self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        self._count = len(keep)


def read_table(path: Path) -> Table:
    """The rows of a table, its thinned past put back in its place."""
    columns, rows = read_rows(path, raw_type)
    steps, values = rows["step"].astype(np.int64), np.ascontiguousarray(rows["values"])
    low = high = values
    thin_path = path.with_suffix(".thin")
    if thin_path.exists():
        past = read_rows(thin_path, thin_type)[1]
        if len(past):
            inside = (steps >= past["step"][0]) & (steps <= past["last"][-1])
            before, after = ~inside & (steps < past["step"][0]), ~inside & (steps > past["last"][-1])
            low, high = (np.concatenate([values[before], past[k], values[after]]) for k in ("low", "high"))
            values = np.concatenate([values[before], past["values"], values[after]])
            steps = np.concatenate([steps[before], past["step"].astype(np.int64), steps[after]])
    return Table(steps, {name: i for i, name in enumerate(columns)}, values, low, high)


def read_rows(path: Path, row_type: Any) -> tuple[list[str], np.ndarray]:
    """Column names and the intact rows; no columns where not even the header is complete."""
    data = path.read_bytes()
    end = data.find(b"\n")
    if end < 0:
        return [], np.zeros(0, row_type(0))
    columns = msgspec.json.decode(data[:end])["columns"]
    dtype = row_type(len(columns))
    rows = np.frombuffer(data[end + 1 :], dtype, count=(len(data) - end - 1) // dtype.itemsize)
    return columns, _intact(rows)


def _intact(rows: np.ndarray) -> np.ndarray:
    """All rows up to the first with a wrong CRC; rows are checked from the end, where a crash can have torn one."""
    width = rows.dtype.itemsize
    data = rows.view(np.uint8).reshape(len(rows), width) if len(rows) else np.zeros((0, width), np.uint8)
    good = len(rows)
    while good and zlib.crc32(data[good - 1, :-4].tobytes()) != int(rows["crc"][good - 1]):
        good -= 1
    return rows[:good]


def _halve(rows: np.ndarray) -> np.ndarray:
    """Neighbouring rows merged in pairs; an odd last row stays as it is."""
    pairs = len(rows) // 2
    a, b = rows[: 2 * pairs : 2], rows[1 : 2 * pairs : 2]
    out = np.zeros(pairs, rows.dtype)
    out["step"], out["last"] = a["step"], b["last"]
    weight = ((a["last"] - a["step"] + 1) / (b["last"] - a["step"] + 1))[:, None]
    with np.errstate(invalid="ignore", over="ignore"):
        out["values"] = _merge(a["values"], b["values"], lambda x, y: weight * x + (1 - weight) * y)
        out["low"] = _merge(a["low"], b["low"], np.minimum)
        out["high"] = _merge(a["high"], b["high"], np.maximum)
    return np.concatenate([out, rows[2 * pairs :]])


def _merge(x: Floats, y: Floats, how: Any) -> Floats:
    """`how` where both were observed; where one was, that one; the marks of an absent gradient give way to numbers."""
    merged = how(x, y)
    for value, other in ((x, y), (y, x)):
        unseen = not_observed(value) | absent(value)
        merged = np.where(unseen, other, merged)
    both = not_observed(x) & not_observed(y)
    return np.where(both, NOT_OBSERVED, merged)


def _write(file: int, data: bytes) -> None:
    written = os.write(file, data)
    if written != len(data):
        msg = "the disk is full"
        raise OSError(28, msg)


def _replace(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(path.suffix + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, path)
