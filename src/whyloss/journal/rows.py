"""Tables on disk: a JSON header line, then fixed-width rows that end in a CRC. A torn or damaged row is left out.

A file is bounded. When it holds `limit` rows, the older half of what follows the first `head` rows moves to a second
file in which each row stands for several rows: their mean, lowest and highest value. How many is the same power of two
for the whole past and doubles when that file is full: resolution halves, and nothing extreme is lost.
"""

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from whyloss.core.errors import NothingToJudge
from whyloss.core.run import Table
from whyloss.core.series import ABSENT, NOT_OBSERVED, Floats, Steps, absent, not_observed
from whyloss.journal.folder import replace_file as _replace

FORMAT = 1
HEAD = 256
LIMIT = 4096
LARGEST_STEP = 2**53
AT_ONCE = 256  # columns that are merged in one go: bounds the memory that thinning takes

RowType = Callable[[int], "np.dtype[Any]"]


def raw_type(columns: int) -> "np.dtype[Any]":
    return np.dtype([("step", "<u8"), ("values", "<f8", (columns,)), ("crc", "<u4")])


def thin_type(columns: int) -> "np.dtype[Any]":
    """`rows`: how many rows it stands for; `count`: in how many of them a column held a number."""
    span = [("step", "<u8"), ("last", "<u8"), ("rows", "<u8")]
    parts = [(name, "<f8", (columns,)) for name in ("values", "low", "high")]
    return np.dtype([*span, *parts, ("count", "<u4", (columns,)), ("crc", "<u4")])


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
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_APPEND, 0o644)
        self._count = 0
        write_whole(self._file, self._header(raw_type))

    def append(self, step: int, values: Floats) -> None:
        data = step.to_bytes(8, "little") + values.astype("<f8", copy=False).tobytes()
        write_whole(self._file, data + zlib.crc32(data).to_bytes(4, "little"))
        self._count += 1
        if self._count >= self.limit:
            self._thin()

    def close(self) -> None:
        os.close(self._file)

    def _header(self, row_type: RowType) -> bytes:
        fields = [[name, kind.str, *map(list, shape)] for name, kind, *shape in _fields(row_type(len(self.columns)))]
        return msgspec.json.encode({"format": FORMAT, "columns": self.columns, "fields": fields}) + b"\n"

    def _thin(self) -> None:
        rows = read_rows(self.path, raw_type)[1]
        cut = self.head + (len(rows) - self.head) // 2
        past = _as_past(rows[self.head : cut])
        if self.thin_path.exists():
            past = np.concatenate([read_rows(self.thin_path, thin_type)[1], past])
        # the thinned past first: a reader that finds a step in both files believes the thinned one
        _replace(self.thin_path, self._header(thin_type) + seal(_merged(past, self.limit // 2)))
        keep = np.concatenate([rows[: self.head], rows[cut:]])
        _replace(self.path, self._header(raw_type) + seal(keep))
        before, self._file = self._file, os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.close(before)
        self._count = len(keep)


def read_table(path: Path) -> Table:
    """The rows of a table, its thinned past put back in its place; steps never fall.

    NothingToJudge where a header is not ours. No rows where there is no file or not even its header is complete.
    """
    if not path.is_file():
        return Table.empty()
    columns, rows, past = _both(path)
    parts = {"steps": rows["step"]} | dict.fromkeys(("values", "low", "high"), rows["values"])
    if len(past):
        parts = _put_back(rows, past)
    steps = np.asarray(parts["steps"], dtype=np.int64)
    values, low, high = (np.ascontiguousarray(parts[k]) for k in ("values", "low", "high"))
    return Table(steps, {name: i for i, name in enumerate(columns)}, values, low, high)


def _both(path: Path) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Columns, rows and thinned past, as they stood together: read again where the past was replaced meanwhile."""
    thin_path = path.with_suffix(".thin")
    for _ in range(8):
        before = _version(thin_path)
        columns, rows = read_rows(path, raw_type)
        past = np.zeros(0, thin_type(len(columns)))
        if before is not None:
            past_columns, found = read_rows(thin_path, thin_type)
            past = found if past_columns == columns else past
        if _version(thin_path) == before:
            break
    return columns, rows, past


def _version(path: Path) -> tuple[int, int] | None:
    """Another one for every file that takes this place."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def read_rows(path: Path, row_type: RowType) -> tuple[list[str], np.ndarray]:
    """Column names and the intact rows; no columns where not even the header is complete."""
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"can't read {path}: {error.strerror}"
        raise NothingToJudge(msg) from error
    end = data.find(b"\n")
    if end < 0:
        return [], np.zeros(0, row_type(0))
    columns = _columns(path, data[:end])
    dtype = row_type(len(columns))
    rows = np.frombuffer(data, dtype, offset=end + 1, count=(len(data) - end - 1) // dtype.itemsize)
    rows = rows[_intact(rows)]
    return columns, rows[rows["step"] >= np.maximum.accumulate(rows["step"])] if len(rows) else rows


class _Header(msgspec.Struct):
    format: int
    columns: list[str]


def _columns(path: Path, line: bytes) -> list[str]:
    try:
        header = msgspec.json.decode(line, type=_Header)
    except (msgspec.DecodeError, RecursionError) as error:
        msg = f"{path} is damaged, or no table of whyloss: its first line is no header ({error})"
        raise NothingToJudge(msg) from error
    if header.format != FORMAT:
        msg = f"{path} has format {header.format}; this whyloss reads format {FORMAT}: use the version that wrote it"
        raise NothingToJudge(msg)
    return header.columns


def _intact(rows: np.ndarray) -> np.ndarray:
    """True for each row whose CRC is right and whose step can be one."""
    width = rows.dtype.itemsize
    data = rows.tobytes()
    crcs = [zlib.crc32(memoryview(data)[at : at + width - 4]) for at in range(0, len(data), width)]
    return np.asarray((np.array(crcs, dtype=np.uint32) == rows["crc"]) & (rows["step"] < LARGEST_STEP))


def _put_back(rows: np.ndarray, past: np.ndarray) -> dict[str, np.ndarray]:
    """The rows with those replaced that the thinned past stands for."""
    before, after = rows["step"] < past["step"][0], rows["step"] > past["last"][-1]
    parts = {"steps": np.concatenate([rows["step"][before], past["step"], rows["step"][after]])}
    for part in ("values", "low", "high"):
        parts[part] = np.concatenate([rows["values"][before], past[part], rows["values"][after]])
    return parts


def _as_past(rows: np.ndarray) -> np.ndarray:
    """Raw rows, each standing for itself."""
    values = rows["values"]
    past = np.zeros(len(rows), thin_type(values.shape[1]))
    past["step"] = past["last"] = rows["step"]
    past["rows"] = 1
    past["values"] = past["low"] = past["high"] = values
    past["count"] = ~(not_observed(values) | absent(values))
    return past


def _merged(past: np.ndarray, most: int) -> np.ndarray:
    """At most `most` rows, each but the last for the same number of raw rows, a power of two."""
    begin = (np.cumsum(past["rows"]) - past["rows"]).astype(np.int64)
    total = int(past["rows"].sum())
    width = 1
    while -(-total // width) > most:
        width *= 2
    first = np.flatnonzero(np.diff(begin // width, prepend=-1))
    out = np.zeros(len(first), past.dtype)
    out["step"] = past["step"][first]
    out["last"] = past["last"][np.append(first[1:], len(past)) - 1]
    out["rows"] = np.add.reduceat(past["rows"], first)
    for at in range(0, past["values"].shape[1], AT_ONCE):
        columns = slice(at, at + AT_ONCE)
        merged = _merge({p: past[p][:, columns] for p in ("values", "low", "high", "count")}, first)
        for part, values in merged.items():
            out[part][:, columns] = values
    return out


def _merge(past: dict[str, np.ndarray], first: Steps) -> dict[str, np.ndarray]:
    """Mean, lowest and highest of the numbers in each bucket; a mark only where there was none: `absent` if any was."""
    seen = past["count"] > 0
    counts = past["count"].astype(np.int64)
    total = np.add.reduceat(counts, first)
    sizes = np.diff(np.append(first, len(counts)))
    share = counts / np.repeat(np.maximum(total, 1), sizes, axis=0)
    with np.errstate(invalid="ignore", over="ignore"):
        low = np.minimum.reduceat(np.where(seen, past["low"], np.inf), first)
        high = np.maximum.reduceat(np.where(seen, past["high"], -np.inf), first)
        mean = np.add.reduceat(np.where(seen, past["values"], 0.0) * share, first)
        mean = np.clip(mean, low, high)  # rounding must not lift the mean of a constant above it
    mark = np.where(np.logical_or.reduceat(absent(past["values"]), first), ABSENT, NOT_OBSERVED)
    some = total > 0
    return {p: np.where(some, v, mark) for p, v in (("values", mean), ("low", low), ("high", high))} | {"count": total}


def _fields(dtype: "np.dtype[Any]") -> list[tuple[Any, ...]]:
    """(name, scalar type, shape if any) of each field."""
    named = [(name, dtype[name]) for name in dtype.names or ()]
    return [(name, kind.base, kind.shape) if kind.shape else (name, kind.base) for name, kind in named]


def write_whole(file: int, data: bytes) -> None:
    """One write. Where only a part fits on the disk, that part is taken back, so that what follows stands alone."""
    written = os.write(file, data)
    if written != len(data):
        os.ftruncate(file, os.fstat(file).st_size - written)
        msg = "the disk is full"
        raise OSError(28, msg)
