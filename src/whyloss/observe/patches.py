"""Where whyloss looks into torch: the few calls that every training passes, wrapped, and the wrapping undone.

reference: the hooks and traps of each are tested in tests/test_attach.py.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from whyloss.observe.entries import unhooked
from whyloss.observe.observer import Observer
from whyloss.tape.recording import backward_options


class Patches:
    """All that is changed in torch while a training is observed."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._undo: list[Callable[[], None]] = []
        self._hooking = self._over = False
        observer.on_detach = self.remove

    def remove(self) -> None:
        """At once, but not while torch goes through the list of hooks: then at the next call that passes here."""
        self._over = True
        if not self._hooking:
            while self._undo:
                self._undo.pop()()

    def install(self) -> None:
        o = self.observer
        self._wrap_backward()
        self._around_init()
        self._after(Optimizer, "zero_grad", lambda self, *a, **k: (o.zeroed, self))
        self._after(nn.Module, "zero_grad", lambda self, *a, **k: (o.module_zeroed, self))
        schedulers = torch.optim.lr_scheduler
        for kind in list(vars(schedulers).values()):
            if isinstance(kind, type) and issubclass(kind, schedulers.LRScheduler) and "step" in vars(kind):
                self._after(kind, "step", lambda self, *a, **k: (o.scheduled, self))
        self._after(torch, "compile", lambda *a, **k: (o.compiled, _module(*a, **k)))
        self._wrap_loaders()
        self._wrap_clipping()
        self._wrap_script()
        self._wrap_scaler(torch.amp.GradScaler)
        self._hook_steps()

    def _see(self, what: Callable[..., None], *args: Any) -> None:
        if self._over:
            self.remove()
        self.observer.see(what, *args)

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name) is value:  # else somebody wrapped it once more: ours passes the call on
                setattr(owner, name, before)

        self._undo.append(undo)

    def _after(self, owner: Any, name: str, event: Callable[..., tuple[Any, ...] | None]) -> None:
        """Calls what `event` makes of the arguments, when the call has returned."""
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not torch.compiler.is_compiling():
                seen = event(*args, **kwargs)
                if seen is not None:
                    self._see(*seen)
            return result

        self._set(owner, name, wrapped)

    def _wrap_backward(self) -> None:
        """Tensor.backward looks torch.autograd.backward up at each call: one place sees both."""
        o, original = self.observer, torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            # reentrant checkpointing calls it within a backward pass
            if torch.compiler.is_compiling() or torch._C._current_graph_task_id() != -1:
                return original(tensors, *args, **kwargs)
            self._see(o.backward_begins, tensors, backward_options(args, kwargs))
            original(tensors, *args, **kwargs)
            return self._see(o.backward_done, tensors)

        self._set(torch.autograd, "backward", backward)

    def _around_init(self) -> None:
        """Every subclass calls Optimizer.__init__, some before they are complete."""
        o, original = self.observer, Optimizer.__init__

        @functools.wraps(original)
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            self._see(o.optimizer_built, optimizer)
            self._see(o.optimizer_ready, optimizer)

        self._set(Optimizer, "__init__", init)

    def _wrap_loaders(self) -> None:
        o, original = self.observer, DataLoader.__iter__

        @functools.wraps(original)
        def iterate(loader: Any) -> Any:
            iterator = original(loader)
            self._see(o.feed.loaders.iterates, loader, iterator)
            return iterator

        self._set(DataLoader, "__iter__", iterate)
        self._after(_BaseDataLoaderIter, "__next__", lambda iterator: (o.feed.loaders.gives, iterator))

    def _wrap_clipping(self) -> None:
        o, module = self.observer, torch.nn.utils.clip_grad
        original = module._clip_grads_with_norm_

        @functools.wraps(original)
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            parameters = _kept(parameters)
            self._see(o.clipped, parameters, max_norm, total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        self._set(module, "_clip_grads_with_norm_", clip)
        by_value = module.clip_grad_value_

        @functools.wraps(by_value)
        def limit(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> None:
            parameters = _kept(parameters)
            self._see(o.clipped_by_value, parameters, clip_value)
            by_value(parameters, clip_value, *args, **kwargs)

        for owner in (module, torch.nn.utils):
            self._set(owner, "clip_grad_value_", limit)
            if hasattr(owner, "clip_grads_with_norm_"):
                self._set(owner, "clip_grads_with_norm_", clip)

    def _wrap_script(self) -> None:
        """TorchScript would compile our hooks. It looks names up in the frame that called it, which is one further."""
        original = torch.jit.script

        @functools.wraps(original)
        def script(obj: Any, optimize: Any = None, _frames_up: int = 0, *args: Any, **kwargs: Any) -> Any:
            with unhooked(obj):
                return original(obj, optimize, _frames_up + 1, *args, **kwargs)

        self._set(torch.jit, "script", script)

    def _wrap_scaler(self, scaler: Any) -> None:
        o, step, scale = self.observer, scaler.step, scaler.scale

        @functools.wraps(scale)
        def scaled(scaler: Any, outputs: Any) -> Any:
            result = scale(scaler, outputs)
            self._see(o.scaled, outputs, result, _scale_of(scaler))
            return result

        @functools.wraps(step)
        def stepped(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            before = o.steps(optimizer)
            result = step(scaler, optimizer, *args, **kwargs)
            if isinstance(optimizer, Optimizer) and o.steps(optimizer) == before:
                self._see(o.step_skipped, optimizer, _scale_of(scaler))
            return result

        self._set(scaler, "scale", scaled)
        self._set(scaler, "step", stepped)
        self._after(scaler, "unscale_", lambda scaler, optimizer, *a, **k: (o.unscaled, optimizer, _scale_of(scaler)))

    def _hook_steps(self) -> None:
        o = self.observer

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            closure = any(callable(a) for a in (*args[1:], *kwargs.values()))
            self._in_hook(o.step_begins, optimizer, closure)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            self._in_hook(o.step_ends, optimizer)

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        self._undo += [handle.remove for handle in handles]

    def _in_hook(self, what: Callable[..., None], *args: Any) -> None:
        if torch.compiler.is_compiling():
            return
        self._hooking = True
        self.observer.see(what, *args)
        self._hooking = False


def _module(model: Any = None, **_: Any) -> nn.Module | None:
    """The module that torch.compile was given, itself or as the owner of a method."""
    owner = getattr(model, "__self__", model)
    return owner if isinstance(owner, nn.Module) else None


def _scale_of(scaler: Any) -> torch.Tensor | None:
    """The scale, on its device. It is changed in place, once the update is over."""
    scale = getattr(scaler, "_scale", None)
    return scale if isinstance(scale, torch.Tensor) else None


def _kept(parameters: Any) -> Any:
    """A generator as a list: both we and torch go through it."""
    return list(parameters) if isinstance(parameters, Iterator) else parameters
