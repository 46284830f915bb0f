"""Records one step of a model where the caller stands around it: `with recording(model) as step:`."""

import functools
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from whyloss.tape.fingerprint import fingerprint
from whyloss.tape.record import Recorder
from whyloss.tape.replay import prove
from whyloss.tape.setup import setup_of
from whyloss.tape.tape import Role, Tape

Named = dict[int, tuple[torch.Tensor, Role, str]]


class Recording:
    """One step being recorded: forward and backward passes, up to the end of the last backward."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.recorder = Recorder(names_of(model), paths_of(model))
        self._backwards: list[int] = []
        self._before: dict[int, torch.Tensor] = {}
        self._losses: list[torch.Tensor] = []
        self._gradients: dict[int, int | None] = {}

    def backward_begins(self, tensors: Any, options: Mapping[str, Any]) -> None:
        place = self.recorder.backward_begins(tensors, options)
        if place is None:
            return
        if not self._backwards:
            self._before = self.recorder.keep_gradients()
        self._backwards.append(place)
        self._losses += [t.detach().clone() for t in (tensors if isinstance(tensors, tuple | list) else (tensors,))]

    def backward_done(self) -> None:
        self._gradients = gradients_of(self.recorder)

    def tape(self, *, state: bool = True) -> Tape:
        """The step as a tape that was replayed once: `faithful` says whether that gave the same bits. `state`: with a
        copy of what the optimizer keeps. ValueError, with the reason, where nothing usable was recorded."""
        setup = setup_of(self.optimizer, self.recorder, state=state) if self.optimizer is not None else None
        tape = self.recorder.tape(self._backwards, before=self._before, root=self.model, setup=setup)
        return prove(tape, self._losses, self._gradients)


@contextmanager
def recording(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[Recording]:
    """Records what runs within the block, from the first call on. Ask for the tape after it."""
    made = Recording(model, optimizer)
    original = torch.autograd.backward

    @functools.wraps(original)
    def backward(tensors: Any, *args: Any, **kwargs: Any) -> None:
        if torch._C._current_graph_task_id() != -1:
            return original(tensors, *args, **kwargs)
        made.backward_begins(tensors, backward_options(args, kwargs))
        original(tensors, *args, **kwargs)
        return made.backward_done()

    recorder = made.recorder
    handles = (
        model.register_forward_pre_hook(lambda m, a, k: recorder.root_begins(m, a, k), with_kwargs=True),
        model.register_forward_hook(lambda m, a, o: recorder.root_ends(), always_call=True),
    )
    torch.autograd.backward = backward
    recorder.start()
    try:
        yield made
    finally:
        recorder.stop()
        torch.autograd.backward = original
        for handle in handles:
            handle.remove()


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
            named.setdefault(id(p), (p, Role.PARAMETER, name))
        for name, b in model.named_buffers():
            named.setdefault(id(b), (b, Role.BUFFER, name))
    return named


def paths_of(*models: nn.Module) -> dict[int, str]:
    return {id(m): path for model in models for path, m in model.named_modules()}
