"""Records the torch-level calls of a step while they happen. Runs every call exactly once and changes nothing of it."""

import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.checkpoint import CheckpointFunction

from whyloss.core.finding import Place
from whyloss.tape.compiled import Surroundings, distance, tolerance_for
from whyloss.tape.generators import GENERATOR, States, drawn, given_generator, states
from whyloss.tape.modes import insert_mode, remove_mode
from whyloss.tape.numbers import Named, Numbers, Unrecordable, tensors
from whyloss.tape.patches import Patches
from whyloss.tape.prune import Pruned, prune
from whyloss.tape.snapshot import same_bits, snapshot, version_of
from whyloss.tape.tape import BACKWARD, READS, Context, Leaf, Op, Ref, Role, Setup, Tape, Value, mapped
from whyloss.tape.where import where

__all__ = ["GENERATOR", "Recorder", "Role", "same_bits", "snapshot"]

EFFECTS = frozenset(
    f"torch.Tensor.{name}" for name in ("__setitem__", "requires_grad_", "requires_grad.__set__", "data.__set__")
)
UNRECORDED = frozenset(
    f"torch.Tensor.{name}"
    for name in ("backward", "retain_grad", "grad", "grad.__set__", "__repr__", "__format__", "__hash__")
)
EXPOSING = frozenset(f"torch.Tensor.{name}" for name in ("numpy", "__array__", "__dlpack__"))
HOOKS = frozenset(f"torch.Tensor.{name}" for name in ("register_hook", "register_post_accumulate_grad_hook"))
MODULE_HOOK = "torch.nn.modules._functions.BackwardHookFunction"
MOST_OPS = 50_000  # of one recording
_BACKWARD = torch.autograd.backward  # before anybody's patch, ours included
_DYNAMO = "torch._dynamo.eval_frame"


@dataclass(slots=True)
class _Before:
    """What is noted of a call before it is made."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    versions: list[int]
    context: Context
    given: torch.Generator | None
    random: States


class Recorder(TorchFunctionMode):
    """A log of calls. `named`: id of a parameter or buffer → the tensor, its role and name; `paths`: id of a module →
    its path. `copy=False` keeps leaves by reference and no statistics: cheap, and good until the next update only.

    It never raises: what it can't record stands in `broken`, and the log is of no use then.
    """

    def __init__(
        self, named: Named, paths: Mapping[int, str], *, copy: bool = True, most_bytes: float = float("inf")
    ) -> None:
        super().__init__()
        self.named, self.paths, self.copy = named, paths, copy
        self._most_bytes = most_bytes
        self.clear()
        self.outer: Place | None = None  # of what is run once more: the user's line at which it ran the first time
        self.on = False
        self._there = self._wanted = False  # on torch's stack of modes
        self.deaf = 0  # above 0 nothing is recorded: within a recorded call, and while whyloss itself computes
        self._thread = 0
        self._uncompiled = False  # runs compiled code as it was written
        self._grad: bool | None = None  # of calls inside a re-entrant checkpoint
        self._contexts: dict[Any, Context] = {}
        self._patches = Patches()

    @property
    def leaves(self) -> Mapping[int, Leaf]:
        return self.numbers.leaves

    @property
    def values(self) -> Mapping[int, Value]:
        return self.numbers.values

    def clear(self) -> None:
        """Forgets what was logged; it may go on at once."""
        self.ops: list[Op] = []
        self.numbers = Numbers(self.named, self.paths, self.copy, self._most_bytes)
        self.doubts: list[str] = []
        self.broken = ""
        self.tolerance = 0.0  # > 0 where compiled code ran
        self._scope = 0

    # -- on and off

    def start(self) -> None:
        """From now on calls of this thread are recorded."""
        if not self.on:
            self.on, self._thread = True, threading.get_ident()
            self._attempt(self._patch)
            self.stop() if self.broken else self.enter()

    def stop(self) -> None:
        """Calls are no longer recorded; leaves nothing behind, whatever the user put on the stack since."""
        self.on = False
        self.leave()
        self._patches.undo()

    def enter(self) -> None:
        """Goes on after `leave()`."""
        if self.on and not self.broken:
            self._wanted = True
            self._attempt(self._enter)

    def leave(self) -> None:
        """Off the stack of modes, until `enter()`."""
        self._wanted = False
        self._exit()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Off it within the block, and afterwards, too, if it was left meanwhile."""
        self._exit()
        try:
            yield
        finally:
            if self._wanted:
                self.enter()

    def _enter(self) -> None:
        if not self._there:
            insert_mode(self)
            self._there = True

    def _exit(self) -> None:
        if self._there:
            self._there = False
            remove_mode(self)

    def _patch(self) -> None:
        clear, recorder = torch.clear_autocast_cache, self

        def cleared() -> None:
            if recorder.mine():
                recorder._scope += 1
            clear()

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder._function(cls, args, kwargs)

        backwards: Callable[..., None] = torch.Tensor.backward

        @functools.wraps(backwards)
        def backward(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> None:
            if not recorder.mine():
                return backwards(tensor, *args, **kwargs)
            if not recorder.copy:  # what comes after backward is no part of the loss
                recorder.leave()
            with recorder.away():  # within a call of ours torch would put us back whatever we do
                return backwards(tensor, *args, **kwargs)

        self._patches.set(torch.Tensor, "backward", backward)
        self._patches.set(torch, "clear_autocast_cache", cleared)
        self._patches.set(_SingleLevelFunction, "apply", classmethod(apply))
        if _DYNAMO in sys.modules:
            self._watch_compiled(sys.modules[_DYNAMO])
        else:
            self._patches.set(torch, "compile", self._compiling(torch.compile))

    def _compiling(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """torch.compile loads the compiler when it is first called."""

        @functools.wraps(original)
        def compiling(*args: Any, **kwargs: Any) -> Any:
            made = original(*args, **kwargs)
            if self.on and vars(torch).get("compile") is compiling and _DYNAMO in sys.modules:
                self._patches.set(torch, "compile", original)
                self._watch_compiled(sys.modules[_DYNAMO])
            return made

        return compiling

    def _watch_compiled(self, dynamo: Any) -> None:
        """Compiled code would trace a mode that is active: it ends the recording, unless it comes by compiled_call."""
        chosen = dynamo._callback_from_stance

        def callback(given: Any) -> Any:
            found = chosen(given)
            if found is not None and self._there and self.mine():
                self.leave()
                self.broken = "a compiled function is called, into which a tape can't look"
            return found

        self._patches.set(dynamo, "_callback_from_stance", callback)

    def updated(self) -> None:
        """Parameters may have been changed by an optimizer: the next use compares them with what is on the tape."""
        self._attempt(self.numbers.updated)

    # -- calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = self._attempt(_name, func) if self._listening() else None
        if name is None or name in UNRECORDED:
            return func(*args, **kwargs)
        if torch._C._are_functorch_transforms_active():
            self.doubt("torch.func transforms: what runs inside them is not seen")
            return func(*args, **kwargs)
        if name == "torch.Tensor.__iter__":
            return iter(self._call("torch.unbind", torch.unbind, args, {}))
        return self._call(name, func, args, kwargs)

    def mine(self) -> bool:
        return self.on and threading.get_ident() == self._thread

    def _listening(self) -> bool:
        """Not within a recorded call, nor in a backward pass or a trace."""
        deaf = self.deaf or self.broken or torch._C._current_graph_task_id() != -1
        return self._there and not deaf and torch._C._get_tracing_state() is None

    def _function(self, cls: Any, args: Any, kwargs: Any) -> Any:
        """A custom autograd.Function: one call. The one behind re-entrant checkpointing is looked into instead."""
        call = torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)
        if not (self._listening() and self.mine()):
            return call(*args, **kwargs)
        if cls is not CheckpointFunction:
            name = f"{cls.__module__}.{cls.__qualname__}"
            return self._call(name, _replayable(name, cls.apply, args), args, kwargs, run=call)
        outer = self._grad
        self._grad = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        try:
            return call(*args, **kwargs)
        finally:
            self._grad = outer

    def _call(self, name: str, func: Any, args: Any, kwargs: Any, run: Any = None) -> Any:
        before = self.guarded(self._before, args, kwargs)
        self.deaf += 1
        try:
            out = (run or func)(*args, **kwargs)
        finally:
            self.deaf -= 1
        if before is not None:
            self.guarded(self._after, name, func, before, out)
        return out

    def guarded(self, what: Callable[..., Any], *args: Any) -> Any:
        """None, and `broken` set, where our own part fails."""
        with torch._C.DisableTorchFunction():
            return self._attempt(what, *args)

    def _attempt(self, what: Callable[..., Any], *args: Any) -> Any:
        """The same without torch's functions being plain within it."""
        try:
            return what(*args)
        except Unrecordable as error:
            self.broken = str(error)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            self.broken = f"{type(error).__name__}: {error}"
        return None

    def _before(self, args: Any, kwargs: Any) -> _Before:
        there: list[torch.Tensor] = []

        def number(t: torch.Tensor) -> Ref:
            there.append(t)
            return Ref(self.numbers.given(t))

        given = given_generator(kwargs)
        if given is not None:
            kwargs = kwargs | {"generator": GENERATOR}
        return _Before(
            args=mapped(tuple(args), number, torch.Tensor),
            kwargs=mapped(dict(kwargs), number, torch.Tensor),
            tensors=there,
            versions=[version_of(t) for t in there],
            context=self.context(),
            given=given,
            random=states(there, given),
        )

    def _after(self, name: str, func: Any, before: _Before, out: Any) -> None:
        if name in HOOKS or name == MODULE_HOOK:
            whose = "module" if name == MODULE_HOOK else "tensor"
            self.doubt(f"a hook on a {whose}'s gradient, which a replay does not call")
        if name in HOOKS:
            return
        changed = [t for t, v in zip(before.tensors, before.versions, strict=True) if version_of(t) != v]
        changed += self._set(name, before.tensors)
        numbers = tuple(dict.fromkeys(self._number(t) for t in changed))
        made = next(tensors(out), None)
        random = drawn(before.random, states(before.tensors, before.given))
        if made is None and not (numbers or random or name in READS or name in EFFECTS):
            return
        for t in changed:
            self.numbers.mark_changed(t)
        if name in EXPOSING:
            self.numbers.expose(before.tensors[0])
        kwargs = before.kwargs
        if made is not None and not before.tensors and made.device.type != "cpu" and "device" not in kwargs:
            kwargs = kwargs | {"device": made.device}  # from a default that a replay may not have
        outputs = self._outputs(out, changed, before) if made is not None else None
        self._log(name, func, before.args, kwargs, outputs, before.context, random, numbers)

    def _set(self, name: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        """What a call changes without a new version. A leaf that is frozen or not is a leaf anew at its next use."""
        wants = name.startswith("torch.Tensor.requires_grad") and name in EFFECTS
        changes = name == "torch.Tensor.data.__set__" or (wants and not self.numbers.is_leaf(tensors[0]))
        return tensors[:1] if changes else []

    def _number(self, t: torch.Tensor) -> int:
        number = self.numbers.known(t)
        assert number is not None
        return number

    def _log(
        self,
        name: str,
        call: Any,
        args: Any,
        kwargs: Any,
        out: Any = None,
        context: Context | None = None,
        random: Any = (),
        changed: tuple[int, ...] = (),
    ) -> int:
        """Adds an op; its place."""
        module, place, inner = where(self.paths, self.outer)
        self.numbers.ran = self.numbers.ran or module is not None
        op = Op(
            name=name,
            call=call,
            args=args,
            kwargs=kwargs,
            out=out,
            context=context or self.context(),
            drawn=random,
            changed=changed,
            module=module or "",
            place=place,
            inner=inner,
        )
        self.ops.append(op)
        if len(self.ops) > MOST_OPS:
            raise Unrecordable(f"the step has more than {MOST_OPS} calls")
        return len(self.ops) - 1

    def _outputs(self, out: Any, changed: list[torch.Tensor], before: _Before) -> Any:
        """The result with a Ref for each tensor; one that the call changed in place has a new number from here on."""
        anew = {id(t) for t in changed}
        families = self.numbers.families(self._number(t) for t in before.tensors)

        def number(t: torch.Tensor) -> Ref:
            known = self.numbers.known(t)
            if known is not None and id(t) not in anew:
                return Ref(known)
            anew.discard(id(t))
            return Ref(self.numbers.made(t, families))

        return mapped(out, number, torch.Tensor)

    # -- compiled code

    def compiled_call(
        self, run: Callable[..., Any], module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Any:
        """What `run(*args, **kwargs)` returns: the call of compiled code, unseen. The module behind it is then run once
        more, uncompiled, from the same state, and recorded; the results of the first stand for those of the second."""
        if self._uncompiled or not (self._listening() and self.mine()):
            return run(*args, **kwargs)
        before = self.guarded(Surroundings, module, args, kwargs)
        with self.away():
            out = run(*args, **kwargs)
        if before is not None:
            self._attempt(self._run_uncompiled, before, args, kwargs, out)
        return out

    def _run_uncompiled(self, before: Surroundings, args: Any, kwargs: Any, out: Any) -> None:
        self._uncompiled = True
        try:
            with before.again(), torch.compiler.set_stance("force_eager"):
                twin = before.module(*args, **kwargs)
        finally:
            self._uncompiled = False
        with torch._C.DisableTorchFunction():
            for ours, theirs in zip(tensors(twin), tensors(out), strict=True):
                self._stand_for(theirs, ours)

    def _stand_for(self, theirs: torch.Tensor, ours: torch.Tensor) -> None:
        self.tolerance = max(self.tolerance, tolerance_for(ours))
        if theirs is not ours:
            self.numbers.stand_for(theirs, ours)
            off = 0.0 if same_bits(ours, theirs) else distance(ours, theirs)
            if off > self.tolerance:
                self.doubt(
                    f"compiled code gives other values than the same code uncompiled, off by {off:.1g} of their norm"
                )

    # -- backward

    def backward_begins(self, tensors: Any, options: Mapping[str, Any]) -> int | None:
        """Records a call of torch.autograd.backward; its place in `ops`. None where it can't be."""
        if self.broken:
            return None
        position: int | None = self.guarded(self._backward, tensors, options)
        return position

    def _backward(self, tensors: Any, options: Mapping[str, Any]) -> int:
        def number(t: torch.Tensor) -> Ref:
            return Ref(self.numbers.given(t))

        from_what = tuple(tensors) if isinstance(tensors, tuple | list) else (tensors,)
        given = mapped(from_what, number, torch.Tensor)
        return self.log_backward(
            given, mapped({k: v for k, v in options.items() if v is not None}, number, torch.Tensor)
        )

    def log_backward(self, given: tuple[Ref, ...], options: Mapping[str, Any]) -> int:
        """The place of a backward call from these."""
        self.numbers.scalar = None
        return self._log(BACKWARD, _BACKWARD, (given,), options)

    def keep_gradients(self) -> dict[int, torch.Tensor]:
        """Copies of the gradients that leaves have now: number → gradient, without those that have none."""
        kept = self.guarded(lambda: {n: t.grad.detach().clone() for n, t in self.live() if t.grad is not None})
        return kept or {}

    def live(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Number and tensor of the leaves that want a gradient and are alive, as last numbered."""
        return self.numbers.live()

    # -- the tape

    def tape(
        self,
        backwards: Iterable[int],
        *,
        before: Mapping[int, torch.Tensor] | None = None,
        step: int = 0,
        trace: int = 0,
        setup: Setup | None = None,
        root: nn.Module | None = None,
    ) -> Tape:
        """The tape of these backward calls, given by their place in `ops`. ValueError where there is nothing usable."""
        if self.broken:
            raise ValueError(self.broken)
        part: Pruned = prune(self.ops, sorted(backwards), self.leaves, self.numbers.family)
        if not part.losses:
            msg = "no backward call was recorded"
            raise ValueError(msg)
        before = before or {}
        looked = {n: self.numbers.statistics[n].read() for n in part.numbers} if self.copy else {}
        values = {n: replace(self.values[n], statistics=looked.get(n)) for n in part.numbers}
        leaves = {n: replace(leaf, before=before.get(n), role=part.roles[n]) for n, leaf in part.leaves.items()}
        training = root.training if root is not None else True
        modes = {p: m.training for p, m in root.named_modules() if m.training != training} if root is not None else {}
        return Tape(
            ops=part.ops,
            leaves=leaves,
            values=values,
            losses=part.losses,
            aside=part.aside,
            step=step,
            trace=trace,
            setup=setup,
            modes=modes,
            training=training,
            dtype=torch.get_default_dtype(),
            tolerance=self.tolerance,
            doubts=(*self.doubts, *self._hooked(leaves)),
        )

    def _hooked(self, leaves: Iterable[int]) -> Iterator[str]:
        names = {self.leaves[n].name for n in leaves}
        for number, tensor in self.live():
            hooks = getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None)
            name = self.leaves[number].name
            if hooks and name in names:
                yield f"a hook on the gradient of {name or 'a tensor'}, which a replay does not call"

    def doubt(self, text: str) -> None:
        if text not in self.doubts:
            self.doubts.append(text)

    def context(self) -> Context:
        """The state of torch in which a call would be recorded now."""
        kinds = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)  # type: ignore[no-untyped-call]
        on = tuple((k, torch.get_autocast_dtype(k)) for k in kinds if torch.is_autocast_enabled(k))
        grad = torch.is_grad_enabled() if self._grad is None else self._grad
        key = grad, on, torch.is_autocast_cache_enabled(), self._scope
        known = self._contexts.get(key)
        if known is None:
            known = self._contexts[key] = Context(*key)
        return known


_names: dict[Any, str] = {}


def _name(func: Any) -> str:
    """torch.softmax, torch.Tensor.data, torch.Tensor.data.__set__; the qualified name of what torch doesn't list."""
    known = _names.get(func)
    if known is None:
        listed = resolve_name(func) or f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', repr(func))}"
        known = _names[func] = listed.removesuffix(".__get__")
    return known


def _replayable(name: str, call: Any, args: Iterable[Any]) -> Any:
    """The call; but one that is given code would run the user's own modules in a replay, on their own parameters."""
    if not any(callable(a) and not isinstance(a, type | torch.Tensor) for a in args):
        return call

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise Unrecordable(f"{name} is given code to call, which a tape does not hold")

    return refuse
