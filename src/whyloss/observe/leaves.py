"""The leaf tensors that losses reach, and who deposits a gradient where."""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from whyloss.observe.graph import leaves

Marks = list[tuple[torch.Tensor | None, int]]


class Leaves:
    """What the first backward passes reach. Holds nothing alive."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self.walked = False
        self.complete = True

    def walk(self, nodes: Iterable[Any]) -> None:
        reached, complete = leaves(nodes)
        self.walked, self.complete = True, self.complete and complete
        for leaf in reached:
            known = self._found.get(id(leaf))
            count = known[1] if known is not None and known[0]() is leaf else 0
            self._found[id(leaf)] = (weakref.ref(leaf), count + 1)

    def alive(self) -> list[torch.Tensor]:
        """Parameters, and other tensors that were reached twice: an input with a gradient is another one each time."""
        found = [(reference(), count) for reference, count in list(self._found.values())]
        return [t for t, count in found if t is not None and (count > 1 or isinstance(t, nn.Parameter))]

    def reach(self, ids: set[int], tensor: torch.Tensor) -> bool | None:
        """Whether the tensor is one of the reached `ids`; None where that is not known."""
        return id(tensor) in ids or (False if self.walked and self.complete else None)


def marks(parameters: Iterable[torch.Tensor]) -> Marks:
    """The gradients as they are now, to see later which of them were added to."""
    return [(g, -1 if g is None else g._version) for g in (p.grad for p in parameters)]


def deposited(parameters: Iterable[torch.Tensor], before: Marks) -> bool:
    """Whether any gradient was made or added to since."""
    for parameter, (grad, version) in zip(parameters, before, strict=False):
        now = parameter.grad
        if now is not None and (now is not grad or now._version != version):
            return True
    return False
