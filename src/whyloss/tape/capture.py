"""What the current step was given, by reference and only until its update: enough to run it once more if it fails.

Each call of an outermost module is noted with its arguments and with what it found: generators and buffers. Calls
between the model's output and backward are logged. `record` runs both again, under a full recording. What the step
computes itself is not held: it is computed once more.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from whyloss.core.finding import Place
from whyloss.core.lines import place_at
from whyloss.tape.compiled import Parts, Surroundings, parts_of
from whyloss.tape.numbers import Named, Unrecordable, tensors
from whyloss.tape.record import Recorder
from whyloss.tape.replay import restore, undisturbed
from whyloss.tape.tape import BACKWARD, Context, Op, Ref, mapped
from whyloss.tape.where import again

MOST_CALLS = 128  # of outermost modules in one step
MOST_OPS = 2048  # between them and the backward calls


@dataclass(slots=True)
class _Call:
    """An outermost module's forward pass; Refs stand for the tensors it was given. `at`: the number of calls logged
    before it. `outputs`: the numbers of its results."""

    module: nn.Module
    args: Any
    kwargs: Any
    found: Surroundings
    context: Context
    place: Place
    at: int
    outputs: list[int] = field(default_factory=list)


class Capture:
    """The current step, or what of it has happened so far."""

    def __init__(self, named: Named, paths: Mapping[int, str]) -> None:
        self.named, self.paths = named, paths
        self.log = Recorder(named, paths, copy=False)
        self.finite: bool | None = None  # every result of the modules, when they ran once more
        self.trouble = ""  # why it can't be run again
        self._parts: dict[int, Parts] = {}  # of modules, which are walked once
        self._calls: list[_Call] = []
        self._inside = False  # the last of them
        self._over = 0  # calls that were logged and forgotten

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any, file: str | None, line: int | None) -> None:
        self.pause()
        if not self.trouble:
            self._inside = True
            self.log.guarded(self._note, module, args, kwargs, Place(file=file, line=line))

    def _note(self, module: nn.Module, args: Any, kwargs: Any, place: Place) -> None:
        given: list[torch.Tensor] = []

        def number(t: torch.Tensor) -> Ref:
            n = self.log.numbers.given(t)
            if n in self.log.leaves:
                given.append(t)
            return Ref(n)

        args, kwargs = (_swapped(tree, number, torch.Tensor) for tree in (args, kwargs))
        parts = self._parts.get(id(module))
        if parts is None:
            parts = self._parts[id(module)] = parts_of(module)
        found, at = Surroundings(module, tuple(given), {}, parts), self._over + len(self.log.ops)
        self._calls.append(_Call(module, args, kwargs, found, self.log.context(), place, at))

    def call_ends(self, output: Any) -> None:
        """None: it raised."""
        if self.trouble or not self._inside:
            return
        self._inside = False
        if output is None:
            del self._calls[-1:]
        else:
            self.log.guarded(self._note_output, output)
        self.log.start()
        self.log.enter()

    def _note_output(self, output: Any) -> None:
        self._calls[-1].outputs = [self.log.numbers.made(t, {}) for t in tensors(output)]

    def backward_begins(self, given: Any, options: Mapping[str, Any]) -> int | None:
        """The place of this backward call, for `record`; None where it can't be noted."""
        place = None if self.trouble else self.log.backward_begins(given, options)
        self.pause()
        return None if place is None else self._over + place

    def backward_missing(self, number: int) -> int | None:
        """Notes a backward call of this scalar, which the program did not make; its place."""
        place: int | None = self.log.guarded(self.log.log_backward, (Ref(number),), {})
        return None if place is None else self._over + place

    def pause(self) -> None:
        """What comes now is no part of the loss."""
        self.log.leave()
        if len(self._calls) > MOST_CALLS or len(self.log.ops) > MOST_OPS:
            self.clear()
            self.trouble = f"the step has more than {MOST_CALLS} forward passes or {MOST_OPS} calls after them"

    def clear(self) -> None:
        """Forgets the step."""
        self.log.leave()
        self.log.clear()
        self._calls, self.trouble, self._inside = [], "", False

    def release(self) -> None:
        """Lets go of everything, and leaves nothing behind in torch."""
        self.clear()
        self.log.stop()
        self._parts = {}

    def updated(self) -> None:
        """Parameters were changed. What is left are passes of other modules, whose results are still there: a later
        loss can be made of them, as that of a generator after the update of its critic."""
        self.pause()
        left = [c for c in self._calls if c.found.unchanged]
        if left:
            alive = self.log.numbers.alive().keys()
            left = [c for c in left if not alive.isdisjoint(c.outputs)]
        if not left or self.log.broken:
            self.clear()
            return
        first = left[0].at - self._over
        del self.log.ops[:first]
        self._calls, self._over = left, self._over + first
        used = {n for op in self.log.ops for n in (*op.inputs, *op.outputs)}
        used |= {n for c in left for n in (*c.outputs, *(r.index for r in _refs((c.args, c.kwargs))))}
        self.log.numbers.keep(used)

    # -- once more

    def record(self, backwards: Iterable[int], most_bytes: float) -> tuple[Recorder, list[int]]:
        """A full recording of the step, run once more from what it found, and the places of these backward calls in it.

        Runs the forward code of the modules: nothing of torch is changed by that, the buffers included. ValueError,
        with the reason, where the step can't be run again; what the code raises passes through.
        """
        self.log.leave()
        if self.trouble or not self._calls:
            raise ValueError(self.trouble or "no forward pass of its model was seen")
        full = Recorder(self.named, self.paths, most_bytes=most_bytes)
        run = _Once(self.log, full, self._calls, self._over, set(backwards))
        with undisturbed(sorted(run.devices)):
            full.start()
            try:
                run.all()
            finally:
                full.stop()
                self.finite = run.finite
        if self.log.broken:
            raise ValueError(self.log.broken)
        return full, run.places


class _Once:
    """Runs the noted modules and calls in their order."""

    def __init__(self, log: Recorder, full: Recorder, calls: list[_Call], over: int, backwards: set[int]) -> None:
        alive = log.numbers.alive()
        self.env: dict[int, Any] = {n: alive.get(n, leaf.value) for n, leaf in log.leaves.items() if not leaf.carried}
        self.devices = {str(t.device) for t in self.env.values() if t.device.type == "cuda"}
        self.places: list[int] = []
        self.finite: bool | None = None
        self._ops = [] if log.broken else log.ops
        self._full, self._calls, self._over, self._backwards = full, list(calls), over, backwards

    def all(self) -> None:
        for i, op in enumerate(self._ops, self._over):
            self._modules(i)
            if op.name == BACKWARD and i not in self._backwards:
                continue
            if all(n in self.env for n in op.inputs):  # else it belongs to what is over
                self._full.outer = op.place
                self._backward(op) if op.name == BACKWARD else self._op(op)
        self._modules(self._over + len(self._ops))

    def _modules(self, until: int) -> None:
        while self._calls and self._calls[0].at <= until:
            self._module(self._calls.pop(0))

    def _module(self, call: _Call) -> None:
        if any(r.index not in self.env for r in _refs((call.args, call.kwargs))):
            raise Unrecordable("a module is given a tensor with a graph that was not recorded")
        args, kwargs = (_swapped(tree, lambda r: self.env[r.index], Ref) for tree in (call.args, call.kwargs))
        self._full.outer = place_at(call.place.file, call.place.line)
        with call.found.again(), _eager():
            made = list(tensors(_in_context(call.context, call.module, args, kwargs)))
        if len(made) != len(call.outputs):
            raise Unrecordable("run once more, the model returns something else")
        self.env.update(zip(call.outputs, made, strict=True))
        with torch._C.DisableTorchFunction():
            self.finite = self.finite is not False and all(bool(t.isfinite().all()) for t in made)

    def _op(self, op: Op) -> None:
        args, kwargs = mapped((op.args, dict(op.kwargs)), lambda r: self.env[r.index], Ref)
        out = _in_context(op.context, op.call, args, restore(op.drawn, kwargs))
        self.env.update(zip(op.outputs, tensors(out), strict=True))

    def _backward(self, op: Op) -> None:
        given, options = mapped((op.args[0], dict(op.kwargs)), lambda r: self.env[r.index], Ref)
        place = self._full.backward_begins(given, options)
        if place is not None:
            self.places.append(place)


def _in_context(context: Context, run: Any, args: Any, kwargs: Any) -> Any:
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(context.grad))
        for kind in ("cpu", "cuda"):
            dtype = dict(context.autocast).get(kind)
            if dtype is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        return again(run, args, kwargs)


def _eager() -> AbstractContextManager[Any]:
    """Compiled code runs as it was written. Without a compiler in memory there is none, and loading it takes long."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _swapped(tree: Any, change: Callable[[Any], Any], kind: type) -> Any:
    """The tree with all of `kind` replaced; what is no plain container stays the very same, with what it holds."""
    if isinstance(tree, kind):
        return change(tree)
    if type(tree) is dict:
        return {key: _swapped(item, change, kind) for key, item in tree.items()}
    if isinstance(tree, tuple | list):
        items = [_swapped(item, change, kind) for item in tree]
        if type(tree) in (tuple, list):
            return type(tree)(items)
        return type(tree)(*items) if hasattr(tree, "_fields") else tree
    return tree


def _refs(tree: Any) -> Iterator[Ref]:
    found: list[Ref] = []
    _swapped(tree, found.append, Ref)
    yield from found
