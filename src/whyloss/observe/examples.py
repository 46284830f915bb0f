"""A number for each example of a batch, so that batches can be compared without keeping any."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import torch

MOST_ELEMENTS = 128  # of an example that its number is made of
MOST_EXAMPLES = 1024  # of a batch
MOST_LOOKED_AT = 64  # of a batch, for what kind of numbers they are
UNIQUE = 0.9  # of the numbers of a batch that is continuous
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Numbers:
    """The numbers of a batch on their way to the host; a GPU is not waited for until they are read."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._numbers, self._arrived = numbers, None
        if numbers.is_cuda:
            self._numbers = torch.empty(numbers.shape, dtype=torch.int64, device="cpu", pin_memory=True)
            self._numbers.copy_(numbers, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    @property
    def ready(self) -> bool:
        return self._arrived is None or bool(self._arrived.query())  # type: ignore[no-untyped-call]

    def read(self) -> list[int]:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._numbers.tolist()


class Arriving:
    """Numbers in the order in which they were asked for, each used once it has arrived."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Numbers, Callable[[list[int]], None]]] = deque()

    def add(self, numbers: Numbers | None, use: Callable[[list[int]], None]) -> None:
        if numbers is not None:
            self._waiting.append((numbers, use))
        self.take()

    def take(self, *, wait: bool = False) -> None:
        while self._waiting and (wait or self._waiting[0][0].ready):
            numbers, use = self._waiting.popleft()
            use(numbers.read())

    def clear(self) -> None:
        self._waiting.clear()


def discrete(args: Any, kwargs: Any) -> bool:
    """Whether no floating-point tensor is among what a module is called with."""
    return not any(t.is_floating_point() or t.is_complex() for t in _tensors((args, kwargs)))


def continuous(args: Any, kwargs: Any) -> bool:
    """Whether a floating-point tensor is among what a module is called with, of several numbers an example, most of
    which stand in it only once. Waits for the device."""
    for t in _tensors((args, kwargs)):
        if t.dtype in (torch.float32, torch.float64) and t.ndim > 1 and len(t) > 1:
            with torch.no_grad():
                rows = torch.unique(t[:MOST_LOOKED_AT].detach().flatten(1)[:, :MOST_ELEMENTS], dim=0)
            if rows.shape[1] > 1 and len(torch.unique(rows)) > UNIQUE * rows.numel():
                return True
    return False


def example_numbers(args: Any, kwargs: Any) -> Numbers | None:
    """One int64 for each of the first examples of what a module is called with: equal examples have equal numbers, and
    different ones different numbers but for those that differ only in elements left out. None where there is no batch.

    Tensors whose first axis is as long as that of the first tensor count as its batch.
    """
    batch = list(_tensors((args, kwargs)))
    size = len(batch[0]) if batch else 0
    if not size:
        return None
    total: torch.Tensor | None = None
    with torch.no_grad():
        for k, t in enumerate(t for t in batch if len(t) == size):
            rows = _bits(t[:MOST_EXAMPLES].detach())
            part = (rows * _weights(k, rows.shape[1], str(rows.device))).sum(1)
            total = part if total is None else total + part.to(total.device)
    return None if total is None else Numbers(total)


def _tensors(thing: Any) -> Iterator[torch.Tensor]:
    if isinstance(thing, torch.Tensor):
        if thing.ndim and thing.layout == torch.strided and not thing.is_quantized and not thing.is_meta:
            yield thing
    elif isinstance(thing, Mapping):
        for value in thing.values():
            yield from _tensors(value)
    elif isinstance(thing, list | tuple):
        for value in thing:
            yield from _tensors(value)


def _bits(t: torch.Tensor) -> torch.Tensor:
    """[n, at most MOST_ELEMENTS] int64, the bits of chosen elements."""
    t = torch.view_as_real(t.resolve_conj()) if t.is_complex() else t
    rows = t.reshape(len(t), -1)
    if rows.shape[1] > MOST_ELEMENTS:
        rows = rows[:, _chosen(rows.shape[1], str(rows.device))]
    rows = rows.to(torch.int8) if rows.dtype == torch.bool else rows
    return rows.contiguous().view(_BITS[rows.dtype.itemsize]).long()


@lru_cache(maxsize=16)
def _chosen(width: int, device: str) -> torch.Tensor:
    """Places spread over the example at uneven distances, from a fixed rule: no generator is drawn from."""
    places = torch.arange(MOST_ELEMENTS, dtype=torch.int64, device=device)
    return (places * width // MOST_ELEMENTS + (places * 2654435761 % 2**16) * (width // MOST_ELEMENTS) // 2**16).clamp_(
        max=width - 1
    )


@lru_cache(maxsize=32)
def _weights(k: int, width: int, device: str) -> torch.Tensor:
    odd = (torch.arange(width, dtype=torch.int64, device=device) + 1 + 1000 * k) * 2 + 1
    return odd * 0x5851F42D4C957F2D | 1
