"""Looks, now and then, for copies of the models that are trained, and at what of them moves.

A look walks over all objects once (0.1 s in a large program), so that there are few: at update 20 and at powers of two,
and only where a model has running statistics. Copies are not kept alive, but for their buffers.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import nn

from whyloss.core.copies import Copy
from whyloss.observe.activations import Guard, Hook
from whyloss.observe.models import modules_alive
from whyloss.observe.optimizer import OptimizerWatch
from whyloss.observe.rows import norms

FIRST = 20  # updates before the first look
MOST = 8  # copies that are followed


class _Known:
    """A copy that was found, and the model that it is one of."""

    def __init__(self, copy: nn.Module, live: nn.Module, trace: int, step: int, hook: Hook) -> None:
        self.copy, self.live = weakref.ref(copy), weakref.ref(live)
        self.trace, self.model, self.first = trace, type(copy).__name__, step
        self.buffers = [list(_statistics(m)) for m in (copy, live)]
        self.start = [_sizes(b) for b in self.buffers]
        self.parameters = _sizes(copy.parameters())
        self.last, self.looks, self.moved, self.evaluated = step, 1, 0, 0
        self.distance = _distance(copy, live)
        self.handle = copy.register_forward_pre_hook(hook)

    def look(self, step: int) -> None:
        copy, live = self.copy(), self.live()
        if copy is None or live is None or step <= self.last:
            return
        now = _sizes(copy.parameters())
        self.moved += now != self.parameters
        self.parameters, self.distance = now, _distance(copy, live)
        self.buffers = [list(_statistics(m)) for m in (copy, live)]
        self.looks, self.last = self.looks + 1, max(step, self.last)

    def facts(self) -> Copy:
        own, lives = (_sizes(b) != start for b, start in zip(self.buffers, self.start, strict=True))
        return Copy(
            trace=self.trace,
            model=self.model,
            first=self.first,
            last=self.last,
            looks=self.looks,
            moved=self.moved,
            buffers=len(self.buffers[0]),
            buffers_moved=own,
            live_buffers_moved=lives,
            distance=self.distance,
            evaluated=self.evaluated,
        )


class Copies:
    """Called within the observer's guard."""

    def __init__(self, guard: Guard) -> None:
        self._hook = Hook(guard, self._passes)
        self._known: list[_Known] = []

    @torch.no_grad()
    def look(self, watch: OptimizerWatch, optimized: Callable[[], Iterable[torch.Tensor]]) -> None:
        """After an update. `optimized`: what any optimizer holds."""
        step = watch.step
        if step < FIRST or (step != FIRST and step & (step - 1)) or not watch.roots:
            return
        live = watch.roots[0].module
        if next(_statistics(live), None) is None:
            return
        for known in self._known:
            known.look(step)
        held = {id(t) for t in optimized()}
        there = {id(k.copy()) for k in self._known}
        for module in modules_alive() if len(self._known) < MOST else ():
            if id(module) not in there and _is_copy(module, live, held) and len(self._known) < MOST:
                self._known.append(_Known(module, live, watch.index, step, self._hook))

    @torch.no_grad()
    def facts(self, step: int) -> list[Copy]:
        """At the end: one look more."""
        for known in self._known:
            known.look(step)
        return [known.facts() for known in self._known]

    def release(self) -> None:
        for known in self._known:
            known.handle.remove()
        self._known = []

    def _passes(self, module: nn.Module, args: Any) -> None:
        known = next((k for k in self._known if k.copy() is module), None)
        if known is not None and not module.training:
            known.evaluated += 1


def _is_copy(module: nn.Module, live: nn.Module, held: set[int]) -> bool:
    """The same class, the same shapes, and no parameter that the model has, or any optimizer."""
    if type(module) is not type(live) or module is live:
        return False
    own, lives = list(module.parameters()), list(live.parameters())
    if [p.shape for p in own] != [p.shape for p in lives]:
        return False
    return held.isdisjoint(map(id, own)) and {id(p) for p in lives}.isdisjoint(map(id, own))


def _statistics(module: nn.Module) -> Iterator[torch.Tensor]:
    return (b for name, b in module.named_buffers() if name.rpartition(".")[2] in ("running_mean", "running_var"))


def _sizes(tensors: Iterable[torch.Tensor]) -> list[float]:
    return list(norms([t.detach() for t in tensors if t.is_floating_point()]).tolist())


def _distance(copy: nn.Module, live: nn.Module) -> float | None:
    pairs = [(a.detach(), b.detach()) for a, b in zip(copy.parameters(), live.parameters(), strict=True)]
    if any(a.device != b.device or a.dtype != b.dtype or not a.is_floating_point() for a, b in pairs):
        return None
    apart, whole = (
        norms(v).norm()
        for v in (torch._foreach_sub([a for a, _ in pairs], [b for _, b in pairs]), [b for _, b in pairs])
    )
    return float(apart / whole) if float(whole) > 0 else None
