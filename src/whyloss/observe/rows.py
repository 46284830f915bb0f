"""One row of a journal table while its numbers are on the device: one transfer a row, none that blocks on CUDA."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from whyloss.core.series import NOT_OBSERVED, Floats

Use = list[int] | Callable[[Floats], None]  # the columns that a fetched part fills, or who takes it

CHUNK = 2**18  # float32 norms of longer pieces are biased low on CPU by up to 0.5 % (pytorch issue 68326)


def norms(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """[n]: the 2-norm of each tensor, in float32 at least; one foreach call a device and dtype. Empty for none."""
    if not tensors:
        return torch.empty(0, device="cpu")
    if len({(t.device, t.dtype) for t in tensors}) == 1 and max(t.numel() for t in tensors) <= 16 * CHUNK:
        return torch.stack(torch._foreach_norm(list(tensors), 2, dtype=_wide(tensors[0].dtype)))
    out: list[torch.Tensor] = [tensors[0]] * len(tensors)
    groups: dict[tuple[torch.device, torch.dtype], list[int]] = {}
    for i, t in enumerate(tensors):
        groups.setdefault((t.device, t.dtype), []).append(i)
    for (_, dtype), members in groups.items():
        pieces = [_pieces(tensors[i]) for i in members]
        made = torch._foreach_norm([piece for group in pieces for piece in group], 2, dtype=_wide(dtype))
        at = 0
        for i, group in zip(members, pieces, strict=True):
            part = made[at : at + len(group)]
            out[i] = part[0] if len(part) == 1 else torch.linalg.vector_norm(torch.stack(part))
            at += len(group)
    return torch.stack([o.to(out[0].device, torch.float64) for o in out])


def _wide(dtype: torch.dtype) -> torch.dtype | None:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else None


def _pieces(t: torch.Tensor) -> Sequence[torch.Tensor]:
    return (t,) if t.numel() <= 16 * CHUNK else torch.split(t.reshape(-1), CHUNK)


class Row:
    """Values by column; those still on a device are fetched together by `fetch` and are there once `ready`."""

    def __init__(self, table: str, step: int, width: int) -> None:
        self.table, self.step, self._width = table, step, width
        self.values: Floats = np.full(width, NOT_OBSERVED)
        self._parts: list[tuple[Use, torch.Tensor]] = []
        self._last: list[Callable[[Floats], None]] = []
        self._fetched: list[tuple[Use, Any, Any]] = []  # what for, the numbers on the host, their event

    def put(self, column: int, value: float) -> None:
        self.values[column] = value

    def later(self, columns: list[int], values: torch.Tensor) -> None:
        """[n] values for n columns, or a 0-d one for one."""
        if columns:
            self._parts.append((columns, values if values.ndim == 1 else values.reshape(-1)))

    def scratch(self, values: torch.Tensor) -> list[int]:
        """Fetches [n] values into columns that exist only until the row is complete, for `lastly` to work with."""
        columns = list(range(len(self.values), len(self.values) + values.numel()))
        self.values = np.append(self.values, np.full(len(columns), NOT_OBSERVED))
        self.later(columns, values)
        return columns

    def then(self, values: torch.Tensor, use: Callable[[Floats], None]) -> None:
        """Fetches `values` with the rest and calls `use` with them, flattened, when the row is completed."""
        self._parts.append((use, values.reshape(-1)))

    def lastly(self, use: Callable[[Floats], None]) -> None:
        """Calls `use` with all values, scratch columns too, when everything has arrived."""
        self._last.append(use)

    @property
    def ready(self) -> bool:
        return all(arrived is None or arrived.query() for _, _, arrived in self._fetched)

    def complete(self) -> Floats:
        """The finished row; waits for transfers that have not arrived."""
        for use, numbers, arrived in self._fetched:
            if arrived is not None:
                arrived.synchronize()
            part = numbers.astype(np.float64, copy=False)
            if callable(use):
                use(part)
            else:
                self.values[use] = part
        for last in self._last:
            last(self.values)
        self._fetched, self._last = [], []
        return self.values[: self._width]


def fetch(rows: Sequence[Row]) -> None:
    """Starts the transfer of what these rows wait for: one a device."""
    by_device: dict[torch.device, list[tuple[Row, Use, torch.Tensor]]] = {}
    for row in rows:
        for use, values in row._parts:
            by_device.setdefault(values.device, []).append((row, use, values))
        row._parts = []
    for device, parts in by_device.items():
        wide = torch.float32 if device.type == "mps" else torch.float64
        joined = torch.cat([v for _, _, v in parts]).to(wide)  # cat widens as it must
        arrived: Any = None
        if device.type == "cuda":
            host = torch.empty(joined.shape, dtype=wide, pin_memory=True)
            host.copy_(joined, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record()
        else:
            host = joined.cpu()
        numbers, at = host.numpy(), 0  # on CUDA a view of what is still arriving
        for row, use, values in parts:
            row._fetched.append((use, numbers[at : at + values.numel()], arrived))
            at += values.numel()
