"""What the current step was given, by reference and only until its update: enough to run it once more if it fails.

Each call of an outermost module is noted with its arguments and with what it found: generators and buffers. Calls
between the model's output and backward are logged. `record` runs both again, under a full recording.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from whyloss.core.finding import Place
from whyloss.tape.compiled import Surroundings
from whyloss.tape.numbers import Named, Unrecordable, tensors
from whyloss.tape.record import Recorder
from whyloss.tape.replay import restore, undisturbed
from whyloss.tape.tape import BACKWARD, Context, Ref, mapped
from whyloss.tape.where import again

MOST_CALLS = 64  # of outermost modules in one step
MOST_OPS = 1024  # between them and the backward calls


@dataclass(slots=True)
class _Call:
    """An outermost module's forward pass. `at`: the number of calls logged before it."""

    module: nn.Module
    args: Any
    kwargs: Any
    found: Surroundings
    context: Context
    file: str | None
    line: int | None
    at: int
    outputs: list[int] = field(default_factory=list)  # numbers of its results


class Capture:
    """One step, or what of it has happened so far."""

    def __init__(self, named: Named, paths: Mapping[int, str]) -> None:
        self.named, self.paths = named, paths
        self.losses: list[torch.Tensor] = []
        self.finite: bool | None = None  # every result of the modules, when they ran once more
        self.trouble = ""
        self._log = Recorder(named, paths, copy=False)
        self._calls: list[_Call] = []
        self._inside = False  # the last of them

    def call_begins(self, module: nn.Module, args: Any, kwargs: Any, file: str | None, line: int | None) -> None:
        self._log.stop()
        if len(self._calls) >= MOST_CALLS or len(self._log.ops) >= MOST_OPS:
            self._give_up(f"the step has more than {MOST_CALLS} forward passes or {MOST_OPS} calls")
        if not self.trouble:
            found, context = Surroundings(module, args, kwargs), self._log.context()
            self._inside = True
            self._calls.append(_Call(module, args, kwargs, found, context, file, line, len(self._log.ops)))

    def call_ends(self, output: Any) -> None:
        if self.trouble or not self._inside:
            return
        self._inside = False
        self._calls[-1].outputs = [self._log.numbers.given(t) for t in tensors(output)]
        self._log.start()

    def backward_begins(self, given: Any, options: Mapping[str, Any]) -> None:
        self.losses += [t.detach().clone() for t in tensors(given)]
        self._log.backward_begins(given, options)
        self._log.stop()

    def pause(self) -> None:
        """What comes now is no part of the loss."""
        self._log.stop()

    def release(self) -> None:
        """Lets go of everything."""
        self._log.stop()
        self._calls, self.losses = [], []

    def _give_up(self, trouble: str) -> None:
        self.release()
        self.trouble = trouble

    # -- once more

    def record(self, most_bytes: float) -> tuple[Recorder, list[int]]:
        """A full recording of the step, run once more from what it found, and the places of its backward calls.

        Runs the forward code of the modules: nothing of torch is changed by that, the buffers included. ValueError,
        with the reason, where the step can't be run again; what the code raises passes through.
        """
        self._log.stop()
        if self.trouble or not self._calls:
            raise ValueError(self.trouble or "no module was called")
        full = Recorder(self.named, self.paths, most_bytes=most_bytes)
        places: list[int] = []
        env = self._leaves()
        devices = {str(t.device) for t in env.values() if t.device.type == "cuda"}
        with undisturbed(sorted(devices)):
            full.start()
            try:
                self._run(full, env, places)
            finally:
                full.stop()
        if self._log.broken:
            raise ValueError(self._log.broken)
        return full, places

    def _leaves(self) -> dict[int, torch.Tensor]:
        """What the logged calls were given, the very tensors where they still live."""
        alive = self._log.numbers.alive()
        return {n: alive.get(n, leaf.value) for n, leaf in self._log.leaves.items()}

    def _run(self, full: Recorder, env: dict[int, Any], places: list[int]) -> None:
        calls = list(self._calls)
        ops = [] if self._log.broken else self._log.ops
        for i, op in enumerate([*ops, None]):
            while calls and (calls[0].at <= i or op is None):
                self._run_module(full, calls.pop(0), env)
            if op is None:
                return
            full.outer = op.place
            args, kwargs = mapped((op.args, dict(op.kwargs)), lambda r: env[r.index], Ref)
            if op.name == BACKWARD:
                place = full.backward_begins(args[0], kwargs)
                places += [] if place is None else [place]
            else:
                out = _in_context(op.context, op.call, args, restore(op.drawn, kwargs))
                env.update(zip(op.outputs, tensors(out), strict=True))

    def _run_module(self, full: Recorder, call: _Call, env: dict[int, Any]) -> None:
        full.outer = Place(file=call.file, line=call.line)
        with call.found.again(), torch.compiler.set_stance("force_eager"):
            out = _in_context(call.context, call.module, call.args, call.kwargs)
        made = list(tensors(out))
        if len(made) != len(call.outputs):
            raise Unrecordable("run once more, the model returns something else")
        env.update(zip(call.outputs, made, strict=True))
        self.finite = self.finite is not False and all(bool(t.isfinite().all()) for t in made)


def _in_context(context: Context, run: Any, args: Any, kwargs: Any) -> Any:
    with ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(context.grad))
        for kind in ("cpu", "cuda"):
            dtype = dict(context.autocast).get(kind)
            if dtype is not None or torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None))
        return again(run, args, kwargs)
