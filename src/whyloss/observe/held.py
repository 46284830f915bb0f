"""Values of the weights that have the bits they began with, however often a gradient pulled at them. On a sample."""

from collections.abc import Sequence

import torch

from whyloss.core.run import Tensor
from whyloss.core.series import Floats
from whyloss.observe.rows import Row
from whyloss.observe.tensors import readable

SAMPLE = 512  # values of each tensor: shares are right to 2 %
PULLS = 3  # looks at which a value had a gradient other than 0
EARLY = frozenset((0, 1, 2, 3, 5, 10, 19))
GROWTH = 1.25  # from one look to the next


class HeldValues:
    """Looks at a few updates, less and less often; no more than 512 values of a tensor, nothing is read back."""

    def __init__(self) -> None:
        self._next = 0.0
        self._of: list[tuple[int, torch.Size, torch.device]] = []  # which tensors, in this order
        self._owner = self._start = self._pulls = self._moved = self._nothing = torch.empty(0, device="cpu")

    def due(self, step: int) -> bool:
        return step in EARLY or (step > max(EARLY) and step >= self._next)

    @torch.no_grad()
    def look(self, row: Row, columns: dict[str, int], tensors: Sequence[tuple[Tensor, torch.Tensor]]) -> None:
        """Before an update, while the gradients that it will use are there."""
        self._next = GROWTH * row.step
        mine = [(t, p) for t, p in tensors if t.in_optimizer and p.requires_grad and _plain(p)]
        mine = [(t, p) for t, p in mine if p.device == mine[0][1].device]
        if not mine:
            return
        values = torch.cat([_sample(p) for _, p in mine])
        of = [(t.key, p.shape, p.device) for t, p in mine]
        if of != self._of or self._start.dtype != values.dtype:
            self._begin(of, values, [_length(p) for _, p in mine])
        self._pulls += torch.cat([self._pull(p) for _, p in mine]) != 0
        self._moved |= values != self._start
        pulled = (self._pulls >= PULLS) & (self._start != 0)  # nothing is too small to be added to a 0
        counts = torch.zeros(2, len(mine), dtype=torch.float64, device=values.device)
        counts.index_add_(1, self._owner, torch.stack([pulled, pulled & ~self._moved]).double())
        names = [columns[f"weight/held[{t.name}]"] for t, _ in mine]

        def put(found: Floats) -> None:
            of_each = found.reshape(2, -1)
            for column, due, held in zip(names, *of_each, strict=True):
                if due > 0:
                    row.put(column, held / due)

        row.then(counts, put)

    def _pull(self, p: torch.Tensor) -> torch.Tensor:
        grad = _gradient(p)
        return _sample(grad) if grad is not None else self._nothing[: _length(p)]

    def _begin(self, of: list[tuple[int, torch.Size, torch.device]], values: torch.Tensor, lengths: list[int]) -> None:
        self._of, self._start = of, values
        self._pulls = torch.zeros(len(values), dtype=torch.int32, device=values.device)
        self._moved = torch.zeros(len(values), dtype=torch.bool, device=values.device)
        self._nothing = torch.zeros(max(lengths), device=values.device)
        places = torch.arange(len(lengths), device="cpu")
        self._owner = places.repeat_interleave(torch.tensor(lengths, device="cpu")).to(values.device)


def _plain(p: torch.Tensor) -> bool:
    """A dense tensor whose values lie one after another."""
    return readable(p) and p.layout == torch.strided and p.is_contiguous() and not p.is_complex()


def _stride(p: torch.Tensor) -> int:
    """Odd, so that all columns of a matrix have their turn."""
    return max(1, p.numel() // SAMPLE) | 1


def _length(p: torch.Tensor) -> int:
    return -(-p.numel() // _stride(p))


def _sample(t: torch.Tensor) -> torch.Tensor:
    return t.detach().view(-1)[:: _stride(t)]


def _gradient(p: torch.Tensor) -> torch.Tensor | None:
    grad = p.grad
    return grad if grad is not None and grad.shape == p.shape and _plain(grad) else None
