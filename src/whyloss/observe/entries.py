"""Hooks on the modules that the training itself calls: the roots, or what it calls below a root that it never calls."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from whyloss.observe.activations import Guard, Hook
from whyloss.observe.feed import Feed
from whyloss.tape.patches import Patches
from whyloss.tape.replay import playing

SETTLED = 3  # backward passes after which only those modules keep a hook that were entered


class Entries:
    """Tells `begins(module, args, kwargs)` and `ends(module, output)` of each outermost forward pass with gradients;
    the feed is told of those without, too."""

    def __init__(
        self,
        guard: Guard,
        begins: Callable[[nn.Module, Any, Any], None],
        ends: Callable[[nn.Module, Any], None],
        feed: Feed | None = None,
    ) -> None:
        self._begins, self._ends, self._feed = begins, ends, feed
        self._before, self._after = Hook(guard, self._enter), Hook(guard, self._leave)
        self._handles: dict[int, tuple[nn.Module, list[Any]]] = {}
        self._entered: set[int] = set()
        self._inside: list[int] = []
        self._passes = 0
        self._patches = Patches()

    def watch(self, modules: Iterable[nn.Module]) -> None:
        """All of them, until it is known which ones are called from outside."""
        for module in modules:
            if id(module) not in self._handles:
                handles = [
                    module.register_forward_pre_hook(self._before, with_kwargs=True),
                    module.register_forward_hook(self._after, always_call=True),
                ]
                self._handles[id(module)] = module, handles
                self._passes = 0

    def watch_compiled(self, owner: nn.Module, attribute: str, around: Callable[..., Any]) -> None:
        """A module whose `attribute` is its compiled call, around which no hook may be. `around(run, module, args,
        kwargs)` makes the call."""
        run, module = getattr(owner, attribute), getattr(owner, "_orig_mod", owner)
        if hasattr(run, "__whyloss__"):
            return

        def call(*args: Any, **kwargs: Any) -> Any:
            out = None
            self._before(module, args, kwargs)
            try:
                out = around(run, module, args, kwargs)
            finally:
                self._after(module, args, out)
            return out

        call.__whyloss__ = True  # type: ignore[attr-defined]
        self._patches.set(owner, attribute, call)

    def pass_ends(self) -> None:
        """A backward pass was made."""
        self._inside.clear()
        self._passes += 1
        if self._passes == SETTLED:
            for key in [k for k in self._handles if k not in self._entered]:
                self._remove(key)

    def forget(self, modules: Iterable[nn.Module]) -> None:
        """Removes their hooks."""
        for module in modules:
            if id(module) in self._handles:
                self._remove(id(module))

    def release(self) -> list[nn.Module]:
        """Removes every hook; the modules that had one."""
        modules = [module for module, _ in self._handles.values()]
        for key in list(self._handles):
            self._remove(key)
        self._patches.undo()
        return modules

    def _remove(self, key: int) -> None:
        for handle in self._handles.pop(key)[1]:
            handle.remove()

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if _elsewhere():
            return
        self._inside.append(id(module))
        if len(self._inside) == 1:
            if self._feed is not None:
                self._feed.begins(module, args, kwargs)
            if torch.is_grad_enabled():
                self._entered.add(id(module))
                self._begins(module, args, kwargs)

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if _elsewhere() or id(module) not in self._inside:
            return
        outermost = self._inside[0] == id(module) and self._inside.count(id(module)) == 1
        while self._inside and self._inside.pop() != id(module):
            pass
        if outermost:
            if self._feed is not None:
                self._feed.ends()
            if torch.is_grad_enabled():
                self._ends(module, output)


@contextmanager
def unhooked(thing: Any) -> Iterator[None]:
    """Within it a module, and what it holds, has none of our hooks."""
    modules = list(thing.modules()) if isinstance(thing, nn.Module) else []
    kept = [(hooks, dict(hooks)) for m in modules for hooks in (m._forward_hooks, m._forward_pre_hooks) if hooks]
    for hooks, there in kept:
        for key in [k for k, hook in there.items() if isinstance(hook, Hook)]:
            del hooks[key]
    try:
        yield
    finally:
        for hooks, there in kept:
            hooks.clear()
            hooks.update(there)


def _elsewhere() -> bool:
    """Not in the training itself: in a replay, a checkpoint that runs again in backward, a trace, or torch.func."""
    return (
        playing()
        or torch._C._current_graph_task_id() != -1
        or torch._C._get_tracing_state() is not None
        or getattr(sys.modules.get("torch.fx._symbolic_trace"), "_is_fx_tracing_flag", False)
        or torch._C._are_functorch_transforms_active()
    )
