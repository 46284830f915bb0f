"""Running a module once more from the state that it found, and how near that comes to what compiled code gave."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from whyloss.tape.generators import restore_states, states
from whyloss.tape.numbers import Unrecordable, tensors
from whyloss.tape.snapshot import snapshot, version_of

TOLERANCE = 1e-4  # relative, of what compiled code gives against the same code uncompiled
HALF_TOLERANCE = 2e-2  # where any of it is in half precision


Parts = tuple[list[nn.Module], list[torch.Tensor]]


class Surroundings:
    """What a module finds: generators, its buffers, and which versions of arguments and parameters."""

    def __init__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], parts: "Parts | None" = None
    ) -> None:
        self.module = module
        self._holders, parameters = parts or parts_of(module)
        self._fixed = [*tensors((args, kwargs)), *parameters]
        self._versions = [version_of(t) for t in self._fixed]
        self._found = self._now()

    @property
    def unchanged(self) -> bool:
        """Arguments and parameters are still what it found."""
        return [version_of(t) for t in self._fixed] == self._versions

    @contextmanager
    def again(self) -> Iterator[None]:
        """Within it they are as they were found; afterwards as the compiled run left them, versions included."""
        with torch._C.DisableTorchFunction():
            if not self.unchanged:
                raise Unrecordable("the step changes its arguments or parameters in place")
            left = self._now()
        self._put(self._found)
        try:
            yield
        finally:
            self._put(left)

    def _now(self) -> tuple[Any, ...]:
        holders = [(m._buffers, dict(m._buffers)) for m in self._holders]
        values = [(b, snapshot(b)) for _, buffers in holders for b in buffers.values() if b is not None]
        return states(self._fixed), holders, values

    def _put(self, state: tuple[Any, ...]) -> None:
        there, holders, values = state
        with torch._C.DisableTorchFunction():
            restore_states(there)
            for holder, buffers in holders:
                holder.clear()
                holder.update(buffers)
            for buffer, value in values:
                buffer.data.copy_(value)  # .data has a version of its own: the graph of the training may have saved it


def parts_of(module: nn.Module) -> Parts:
    """The modules that hold buffers, and all parameters: one walk, since it is made for every step."""
    stack, seen = [module], set()
    holders: list[nn.Module] = []
    parameters: list[torch.Tensor] = []
    while stack:
        inner = stack.pop()
        if id(inner) not in seen:
            seen.add(id(inner))
            if inner._buffers:
                holders.append(inner)
            parameters += [p for p in inner._parameters.values() if p is not None]
            stack += [child for child in inner._modules.values() if child is not None]
    return holders, parameters


def tolerance_for(t: torch.Tensor) -> float:
    return HALF_TOLERANCE if t.dtype in (torch.float16, torch.bfloat16) else TOLERANCE


def distance(a: torch.Tensor, b: torch.Tensor, floor: float = 0.0) -> float:
    """Norm of the difference over the larger norm, or over `floor`; infinite where only one value is not finite."""
    a, b = (t.detach().to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return math.inf
    a, b = (t[t.isfinite()] for t in (a, b))
    scale = max(a.norm().item(), b.norm().item(), floor)
    return (a - b).norm().item() / scale if scale else 0.0
