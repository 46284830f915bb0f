"""One row of a journal table while its numbers are on the device: one transfer a row, none that blocks on CUDA."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from whyloss.core.series import NOT_OBSERVED, Floats

Use = list[int] | Callable[[Floats], None]  # the columns that a fetched part fills, or who takes it

CHUNK = 2**18  # float32 norms of longer pieces are biased low on CPU by up to 0.5 % (pytorch issue 68326)


def norms(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The 2-norm of each tensor, as 0-d tensors of at least float32; one foreach call a device and dtype."""
    if len({(t.device, t.dtype) for t in tensors}) == 1 and all(t.numel() <= 16 * CHUNK for t in tensors):
        return list(torch._foreach_norm(list(tensors), 2, dtype=_wide(tensors[0].dtype)))
    out: list[torch.Tensor | None] = [None] * len(tensors)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault((t.device, t.dtype), []).append(i)
    for (_, dtype), members in groups.items():
        pieces = [_pieces(tensors[i]) for i in members]
        flat = [piece for group in pieces for piece in group]
        made = torch._foreach_norm(flat, 2, dtype=_wide(dtype))
        at = 0
        for i, group in zip(members, pieces, strict=True):
            part = made[at : at + len(group)]
            out[i] = part[0] if len(part) == 1 else torch.linalg.vector_norm(torch.stack(part))
            at += len(group)
    return [t for t in out if t is not None]


def _wide(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else None


def _pieces(t: torch.Tensor) -> Sequence[torch.Tensor]:
    return (t,) if t.numel() <= 16 * CHUNK else torch.split(t.reshape(-1), CHUNK)


class Row:
    """Values by column; those still on a device are fetched together by `fetch` and are there once `ready`."""

    def __init__(self, table: str, step: int, width: int) -> None:
        self.table, self.step, self._width = table, step, width
        self.values: Floats = np.full(width, NOT_OBSERVED)
        self._single: list[tuple[Sequence[int], Sequence[torch.Tensor]]] = []
        self._parts: list[tuple[Use, torch.Tensor]] = []
        self._last: list[Callable[[Floats], None]] = []
        self._fetched: list[tuple[list[tuple[Use, int]], torch.Tensor, Any]] = []

    def put(self, column: int, value: float) -> None:
        self.values[column] = value

    def later(self, columns: Sequence[int], values: Sequence[torch.Tensor]) -> None:
        """A 0-d tensor for each column."""
        if columns:
            self._single.append((columns, values))

    def scratch(self, values: Sequence[torch.Tensor]) -> list[int]:
        """Fetches 0-d tensors into columns that exist only until the row is complete, for `lastly` to work with."""
        columns = list(range(len(self.values), len(self.values) + len(values)))
        self.values = np.append(self.values, np.full(len(values), NOT_OBSERVED))
        self.later(columns, values)
        return columns

    def then(self, values: torch.Tensor, use: Callable[[Floats], None]) -> None:
        """Fetches `values` with the rest and calls `use` with them, flattened, when the row is completed."""
        self._parts.append((use, values.reshape(-1)))

    def lastly(self, use: Callable[[Floats], None]) -> None:
        """Calls `use` with all values, scratch columns too, when everything has arrived."""
        self._last.append(use)

    def fetch(self) -> None:
        """Starts the transfer: one a device."""
        by_device: dict[torch.device, list[tuple[Use, torch.Tensor]]] = {}
        for use, values in (*_stacked(self._single), *self._parts):
            by_device.setdefault(values.device, []).append((use, values))
        for device, parts in by_device.items():
            wide = torch.float32 if device.type == "mps" else torch.float64
            joined = torch.cat([v for _, v in parts]).to(wide)
            uses = [(use, v.numel()) for use, v in parts]
            if device.type == "cuda":
                host = torch.empty(joined.shape, dtype=wide, pin_memory=True)
                host.copy_(joined, non_blocking=True)
                arrived: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
                arrived.record()
                self._fetched.append((uses, host, arrived))
            else:
                self._fetched.append((uses, joined.cpu(), None))
        self._single, self._parts = [], []

    @property
    def ready(self) -> bool:
        return all(arrived is None or arrived.query() for _, _, arrived in self._fetched)

    def complete(self) -> Floats:
        """The finished row; waits for transfers that have not arrived."""
        for uses, host, arrived in self._fetched:
            if arrived is not None:
                arrived.synchronize()
            fetched, at = host.numpy().astype(np.float64, copy=False), 0
            for use, size in uses:
                part = fetched[at : at + size]
                at += size
                if callable(use):
                    use(part)
                else:
                    self.values[use] = part
        for last in self._last:
            last(self.values)
        self._fetched, self._last = [], []
        return self.values[: self._width]


def _stacked(single: list[tuple[Sequence[int], Sequence[torch.Tensor]]]) -> list[tuple[Use, torch.Tensor]]:
    """0-d tensors joined, those of one device and dtype in one call."""
    groups: dict[tuple[torch.device, torch.dtype], tuple[list[int], list[torch.Tensor]]] = {}
    for columns, values in single:
        kinds = {(v.device, v.dtype) for v in values}
        for kind in kinds:
            into, what = groups.setdefault(kind, ([], []))
            if len(kinds) == 1:
                into.extend(columns)
                what.extend(values)
                continue
            for column, value in zip(columns, values, strict=True):
                if (value.device, value.dtype) == kind:
                    into.append(column)
                    what.append(value)
    return [(columns, torch.stack(values)) for columns, values in groups.values()]
