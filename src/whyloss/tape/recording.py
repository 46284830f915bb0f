"""Records one step of a model where the caller stands around it: `with recording(model) as step:`."""

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from whyloss.tape.fingerprint import fingerprint
from whyloss.tape.numbers import tensors
from whyloss.tape.patches import Patches
from whyloss.tape.prove import prove
from whyloss.tape.record import Recorder
from whyloss.tape.setup import setup_of
from whyloss.tape.tape import Role, Setup, Tape

Named = dict[int, tuple[torch.Tensor, Role, str]]
Marks = dict[int, tuple[int, int]]


@dataclass
class Part:
    """The backward calls between two updates, or after gradients were cleared: what one tape holds."""

    before: dict[int, torch.Tensor]  # gradients that there were
    backwards: list[int] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[int, int | None] = field(default_factory=dict)
    near: dict[int, torch.Tensor] | None = None  # gradients themselves, where compiled code ran
    marks: Marks = field(default_factory=dict)  # by which a gradient is known to be untouched
    by: Optimizer | None = None  # whose update follows
    setup: Setup | None = None


class Recording:
    """Forward and backward passes being recorded; an update, or clearing all gradients, begins a new part."""

    def __init__(self, model: nn.Module, optimizer: Optimizer | None = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.recorder = Recorder(names_of(model), paths_of(model))
        self.parts: list[Part] = []
        self._open = False
        self._within = 0  # backward passes
        self._closure: Optimizer | None = None  # that runs one

    def backward_begins(self, tensors: Any, options: Mapping[str, Any]) -> None:
        self._within += 1
        if self._within == 1:
            self.recorder.guarded(self._begin, tensors, options)
            self.recorder.leave()

    def backward_done(self, completed: bool = True) -> None:
        self._within -= 1
        if not self._within:
            if completed:
                self.recorder.guarded(self._end)
            self.recorder.enter()

    def _begin(self, given: Any, options: Mapping[str, Any]) -> None:
        place = self.recorder.backward_begins(given, options)
        if place is None:
            return
        if not self._open or self._cleared(self.parts[-1].marks):
            self.parts.append(Part(self.recorder.keep_gradients()))
            self._open = True
        part = self.parts[-1]
        part.backwards.append(place)
        part.losses += [t.detach().clone() for t in tensors(given)]

    def _end(self) -> None:
        if not self._open:
            return
        part, recorder = self.parts[-1], self.recorder
        part.gradients = gradients_of(recorder)
        part.near = recorder.keep_gradients() if recorder.tolerance else None
        part.marks = self._marks()
        if self._closure is not None:
            self._close(self._closure)

    def _marks(self) -> Marks:
        named = ((n, t) for n, t in self.recorder.live() if self.recorder.leaves[n].name)
        return {n: (id(t.grad), t.grad._version) for n, t in named if t.grad is not None}

    def _cleared(self, marks: Marks) -> bool:
        """Whether all gradients are gone since; a doubt where only some are other ones."""
        now = self._marks()
        kept = [n for n, mark in marks.items() if now.get(n) == mark]
        if kept and len(kept) < len(marks):
            self.recorder.doubt("some gradients were changed between two backward calls")
        return bool(marks) and not kept

    def update_begins(self, optimizer: Optimizer) -> None:
        self.recorder.guarded(self._close, optimizer)
        self.recorder.leave()

    def update_ends(self) -> None:
        self.recorder.updated()
        self.recorder.enter()

    def _close(self, optimizer: Optimizer) -> None:
        """The update follows on what was recorded so far."""
        if self._open:
            self._open, part = False, self.parts[-1]
            part.by = optimizer
            if optimizer is self.optimizer:
                part.setup = setup_of(optimizer, self.recorder, state=True)

    def closure(self, optimizer: Optimizer, run: Callable[..., Any]) -> Callable[..., Any]:
        """Passes within an update: each is a part of its own."""

        @functools.wraps(run)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            outer, self._closure = self._closure, optimizer
            self.update_ends()
            try:
                return run(*args, **kwargs)
            finally:
                self._closure = outer
                self.recorder.leave()

        return wrapped

    def tapes(self, *, state: bool = True) -> list[Tape]:
        """A tape for each part, oldest first, without those that were followed by another optimizer's update."""
        return [self._tape(part, state) for part in self._mine()]

    def tape(self, *, state: bool = True) -> Tape:
        """The last part as a tape that was replayed once: `faithful` says whether that gave the same bits. `state`:
        with a copy of what the optimizer keeps. ValueError, with the reason, where nothing usable was recorded."""
        mine = self._mine()
        return self._tape(mine[-1] if mine else Part({}), state)

    def _mine(self) -> list[Part]:
        return [p for p in self.parts if self.optimizer is None or p.by in (None, self.optimizer)]

    def _tape(self, part: Part, state: bool) -> Tape:
        setup = part.setup
        if setup is None and self.optimizer is not None and not self.recorder.broken:
            setup = setup_of(self.optimizer, self.recorder, state=state)
        if setup is not None and not state:
            setup = replace(setup, state=None)
        tape = self.recorder.tape(part.backwards, before=part.before, root=self.model, setup=setup)
        return prove(tape, part.losses, part.gradients, part.near)


@contextmanager
def recording(model: nn.Module, optimizer: Optimizer | None = None) -> Iterator[Recording]:
    """Records what runs within the block, from the first call on. Ask for the tape after it."""
    made, patches = Recording(model, optimizer), Patches()
    patches.set(torch.autograd, "backward", _backward(made, torch.autograd.backward))
    for module, name in compiled_calls(model):
        patches.set(module, name, _compiled(made, module, getattr(module, name)))
    handles = register_optimizer_step_pre_hook(_before(made)), register_optimizer_step_post_hook(_after(made))
    made.recorder.start()
    try:
        yield made
    finally:
        made.recorder.stop()
        patches.undo()
        for handle in handles:
            handle.remove()


def _backward(made: Recording, original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if torch._C._current_graph_task_id() != -1 or not made.recorder.mine():
            return original(tensors, *args, **kwargs)
        made.backward_begins(tensors, backward_options(args, kwargs))
        completed = False
        try:
            original(tensors, *args, **kwargs)
            completed = True
        finally:
            made.backward_done(completed)
        return None

    return backward


def _before(made: Recording) -> Callable[..., Any]:
    def hook(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not made.recorder.mine():
            return None
        made.update_begins(optimizer)
        if len(args) > 1 and callable(args[1]):
            return (args[0], made.closure(optimizer, args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": made.closure(optimizer, kwargs["closure"])}
        return None

    return hook


def _after(made: Recording) -> Callable[..., None]:
    def hook(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if made.recorder.mine():
            made.update_ends()

    return hook


def compiled_calls(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Each outermost module whose call is compiled, and the attribute that holds the compiled call."""
    kind = getattr(sys.modules.get("torch._dynamo.eval_frame"), "OptimizedModule", ())
    inside: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(outer) for outer in inside):
            continue
        if isinstance(module, kind) or module._compiled_call_impl is not None:
            yield module, "forward" if isinstance(module, kind) else "_compiled_call_impl"
            inside.append(f"{path}." if path else "")


def _compiled(made: Recording, module: nn.Module, run: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return made.recorder.compiled_call(run, getattr(module, "_orig_mod", module), args, kwargs)

    return call


_OPTIONS = tuple(inspect.signature(torch.autograd.backward).parameters)[1:]


def backward_options(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a call of torch.autograd.backward by name, whichever way they were given."""
    return dict(zip(_OPTIONS, args, strict=False)) | dict(kwargs)


def gradients_of(recorder: Recorder) -> dict[int, int | None]:
    """Fingerprints of the gradients that the recorded leaves have now; None for none."""
    return {n: None if t.grad is None else fingerprint(t.grad) for n, t in recorder.live()}


def names_of(*models: nn.Module) -> Named:
    """Parameters and buffers under their first names."""
    named: Named = {}
    for model in models:
        for name, p in model.named_parameters():
            named.setdefault(id(p), (p, Role.PARAMETER, _plain(name)))
        for name, b in model.named_buffers():
            named.setdefault(id(b), (b, Role.BUFFER, _plain(name)))
    return named


def paths_of(*models: nn.Module) -> dict[int, str]:
    return {id(m): _plain(path) for model in models for path, m in model.named_modules()}


def _plain(path: str) -> str:
    """Without what torch.compile puts into it."""
    return ".".join(part for part in path.split(".") if part != "_orig_mod")
