"""Where whyloss looks into torch: the few calls that every training passes, wrapped, and the wrapping undone.

reference: the hooks and traps of each are tested in tests/test_attach.py.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from whyloss.observe.observer import Observer


class Patches:
    """All that is changed in torch while a training is observed."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self._undo: list[Callable[[], None]] = []
        observer.on_detach = self.remove

    def remove(self) -> None:
        while self._undo:
            self._undo.pop()()

    def install(self) -> None:
        o = self.observer
        self._wrap_backward()
        self._around_init()
        self._after(Optimizer, "zero_grad", lambda self, *a, **k: o.see(o.zeroed, self))
        self._after(nn.Module, "zero_grad", lambda self, *a, **k: o.see(o.module_zeroed, self))
        schedulers = torch.optim.lr_scheduler
        self._after(schedulers.LRScheduler, "step", lambda *a, **k: o.see(o.scheduled))
        self._after(schedulers.ReduceLROnPlateau, "step", lambda *a, **k: o.see(o.scheduled))
        self._wrap_clipping()
        self._wrap_scaler(torch.amp.GradScaler)
        self._hook_steps()

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._undo.append(lambda: setattr(owner, name, before))

    def _after(self, owner: Any, name: str, seen: Callable[..., None]) -> None:
        original = getattr(owner, name)

        @functools.wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            if not torch.compiler.is_compiling():
                seen(*args, **kwargs)
            return result

        self._set(owner, name, wrapped)

    def _wrap_backward(self) -> None:
        """Tensor.backward looks torch.autograd.backward up at each call: one place sees both."""
        o, original = self.observer, torch.autograd.backward

        @functools.wraps(original)
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
            if torch.compiler.is_compiling():
                return original(tensors, *args, **kwargs)
            loss = tensors[0] if isinstance(tensors, tuple | list) and len(tensors) == 1 else tensors
            o.see(o.backward_begins, loss)
            original(tensors, *args, **kwargs)
            return o.see(o.backward_done, loss)

        self._set(torch.autograd, "backward", backward)

    def _around_init(self) -> None:
        """Optimizer.__init__ is called by every subclass, sometimes before it is complete: its model is sought later."""
        o, original = self.observer, Optimizer.__init__

        @functools.wraps(original)
        def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            o.see(o.optimizer_built, self)
            o.see(o.optimizer_ready, self)

        self._set(Optimizer, "__init__", init)

    def _wrap_clipping(self) -> None:
        o, module = self.observer, torch.nn.utils.clip_grad
        original = module._clip_grads_with_norm_

        @functools.wraps(original)
        def clip(parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any) -> Any:
            o.see(o.clipped, max_norm, total_norm)
            return original(parameters, max_norm, total_norm, *args, **kwargs)

        self._set(module, "_clip_grads_with_norm_", clip)
        for owner in (module, torch.nn.utils):
            if hasattr(owner, "clip_grads_with_norm_"):
                self._set(owner, "clip_grads_with_norm_", clip)

        def limit(parameters: Any, clip_value: Any, *args: Any, **kwargs: Any) -> None:
            o.see(o.clipped_by_value, clip_value)

        for owner in (module, torch.nn.utils):
            self._after(owner, "clip_grad_value_", limit)

    def _wrap_scaler(self, scaler: Any) -> None:
        o, step, scale = self.observer, scaler.step, scaler.scale

        @functools.wraps(scale)
        def scaled(self: Any, outputs: Any) -> Any:
            result = scale(self, outputs)
            o.see(o.scaled, outputs, result)
            return result

        @functools.wraps(step)
        def stepped(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            watch = o.watches.get(id(optimizer))
            before = watch.step if watch is not None else None
            result = step(self, optimizer, *args, **kwargs)
            if watch is not None and watch.step == before:
                o.see(o.step_skipped, optimizer)
            return result

        self._set(scaler, "scale", scaled)
        self._set(scaler, "step", stepped)
        self._after(scaler, "unscale_", lambda self, optimizer, *a, **k: o.see(o.unscaled, optimizer))

    def _hook_steps(self) -> None:
        o = self.observer

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                closure = any(callable(a) for a in (*args[1:], *kwargs.values()))
                o.see(o.step_begins, optimizer, closure)

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if not torch.compiler.is_compiling():
                o.see(o.step_ends, optimizer)

        handles = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
        self._undo += [handle.remove for handle in handles]
