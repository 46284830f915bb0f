"""Records the torch-level calls of a step while they happen. Runs every call exactly once and changes nothing of it."""

import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils.checkpoint import CheckpointFunction

from whyloss.core.finding import Place
from whyloss.core.lines import is_user_file, place_at
from whyloss.tape.modes import insert_mode, remove_mode
from whyloss.tape.prune import Pruned, prune
from whyloss.tape.statistics import Pending, look
from whyloss.tape.tape import BACKWARD, READS, Context, Drawn, Leaf, Op, Ref, Role, Setup, Tape, Value, mapped

EFFECTS = frozenset(
    f"torch.Tensor.{name}" for name in ("__setitem__", "requires_grad_", "requires_grad.__set__", "data.__set__")
)
UNRECORDED = frozenset(
    f"torch.Tensor.{name}" for name in ("backward", "retain_grad", "grad.__set__", "__repr__", "__format__", "__hash__")
)
HOOKS = frozenset(f"torch.Tensor.{name}" for name in ("register_hook", "register_post_accumulate_grad_hook"))
MOST_OPS = 50_000  # of one recording
_BACKWARD = torch.autograd.backward  # before anybody's patch, ours included
_CALL = nn.Module._wrapped_call_impl.__code__  # a frame of it stands on the stack for each module that runs


class GivenGenerator:
    """Stands on the tape where the user gave a generator of their own; its state is in `Op.drawn`."""


GENERATOR = GivenGenerator()


@dataclass(slots=True)
class _Known:
    """A tensor that has a number. The tensor itself is not kept."""

    reference: "weakref.ref[torch.Tensor]"
    number: int
    version: int
    leaf: bool
    trained: bool  # requires_grad, of a leaf


@dataclass(slots=True)
class _Before:
    """What is noted of a call before it is made."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    versions: list[int]
    context: Context
    random: list[tuple[str, torch.Tensor]]
    given: torch.Generator | None


class Recorder(TorchFunctionMode):
    """A log of calls. `named`: id of a parameter or buffer → the tensor, its role and name; `paths`: id of a module →
    its path. `copy=False` keeps leaves by reference and no statistics: cheap, and good until the next update only.

    It never raises: what it can't record stands in `broken`, and the log is of no use then.
    """

    def __init__(
        self,
        named: Mapping[int, tuple[torch.Tensor, Role, str]],
        paths: Mapping[int, str],
        *,
        copy: bool = True,
        most_bytes: float = float("inf"),
    ) -> None:
        super().__init__()
        self.named, self.paths, self.copy, self.most_bytes = named, paths, copy, most_bytes
        self.broken = ""
        self.doubts: list[str] = []
        self.ops: list[Op] = []
        self.leaves: dict[int, Leaf] = {}
        self.values: dict[int, Value] = {}
        self.family: dict[
            int, int
        ] = {}  # number → the first tensor of which it is a view, or that it is in another state
        self.kept_bytes = 0
        self.on = False
        self._known: dict[int, _Known] = {}
        self._statistics: dict[int, Pending] = {}
        self._inputs: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._storage: dict[int, int] = {}
        self._checked: set[int] = set()  # leaves compared with the live tensor since the last update
        self._dirty: dict[int, int] = {}  # storage → how many recorded calls changed it
        self._seen_dirty: dict[int, int] = {}
        self._changed: set[int] = set()  # leaves that recorded calls changed in place
        self._deaf = 0
        self._roots = self._calls = 0
        self._grad: bool | None = None  # of calls inside a re-entrant checkpoint
        self._scope = 0
        self._undo: list[Callable[[], None]] = []

    # -- on and off

    def start(self) -> None:
        """From now on calls of this thread are recorded."""
        if self.on:
            return
        self.on = True
        insert_mode(self)
        clear = torch.clear_autocast_cache

        def cleared() -> None:
            self._scope += 1
            clear()

        torch.clear_autocast_cache = cleared
        self._undo.append(lambda: _restore(torch, "clear_autocast_cache", cleared, clear))
        recorder = self

        def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
            return recorder._function(cls, args, kwargs)

        before = vars(_SingleLevelFunction).get("apply")
        ours = classmethod(apply)
        _SingleLevelFunction.apply = ours  # type: ignore[attr-defined]
        self._undo.append(lambda: _restore(_SingleLevelFunction, "apply", ours, before))

    def stop(self) -> None:
        """Calls are no longer recorded; leaves nothing behind, whatever the user put on the stack since."""
        if self.on:
            self.on = False
            remove_mode(self)
            while self._undo:
                self._undo.pop()()

    @contextmanager
    def root(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Around the forward pass of an outermost module: its arguments are the inputs."""
        self.root_begins(module, args, kwargs)
        try:
            yield
        finally:
            self.root_ends()

    def root_begins(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._roots += 1
        self._calls += 1
        if self._roots == 1:
            for name, tensor in _arguments(module, args, kwargs):
                self._inputs[id(tensor)] = (weakref.ref(tensor), name)

    def root_ends(self) -> None:
        self._roots = max(0, self._roots - 1)

    def updated(self) -> None:
        """Parameters may have been changed by an optimizer: the next use compares them with what is on the tape."""
        self._checked.clear()
        self._known = {i: k for i, k in self._known.items() if k.number not in self._changed}

    # -- calls

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._deaf or self.broken or torch._C._current_graph_task_id() != -1:
            return func(*args, **kwargs)
        name = _name(func)
        if name in UNRECORDED:
            return func(*args, **kwargs)
        if torch._C._are_functorch_transforms_active():
            self._doubt("torch.func transforms: what runs inside them is not seen")
            return func(*args, **kwargs)
        if name == "torch.Tensor.__iter__":
            return iter(self._call("torch.unbind", torch.unbind, args, {}))
        return self._call(name, func, args, kwargs)

    def _function(self, cls: Any, args: Any, kwargs: Any) -> Any:
        """A custom autograd.Function: one call. The one behind re-entrant checkpointing is looked into instead."""
        call = torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)
        if self._deaf or self.broken or torch._C._current_graph_task_id() != -1:
            return call(*args, **kwargs)
        if cls is not CheckpointFunction:
            return self._call(f"{cls.__module__}.{cls.__qualname__}", cls.apply, args, kwargs, run=call)
        outer = self._grad
        self._grad = torch.is_grad_enabled() and any(isinstance(a, torch.Tensor) and a.requires_grad for a in args)
        try:
            return call(*args, **kwargs)
        finally:
            self._grad = outer

    def _call(self, name: str, func: Any, args: Any, kwargs: Any, run: Any = None) -> Any:
        before = self._guarded(self._before, args, kwargs)
        self._deaf += 1
        try:
            out = (run or func)(*args, **kwargs)
        finally:
            self._deaf -= 1
        if before is not None:
            self._guarded(self._after, name, func, before, out)
        return out

    def _guarded(self, what: Callable[..., Any], *args: Any) -> Any:
        """None, and `broken` set, where our own part fails."""
        try:
            with torch._C.DisableTorchFunction():
                return what(*args)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            self.broken = f"{type(error).__name__}: {error}"
            return None

    def _before(self, args: Any, kwargs: Any) -> _Before:
        tensors: list[torch.Tensor] = []

        def number(t: torch.Tensor) -> Ref:
            tensors.append(t)
            return Ref(self._number(t))

        given = kwargs.get("generator")
        if isinstance(given, torch.Generator):
            kwargs = kwargs | {"generator": GENERATOR}
        context = self._context()
        there, named = mapped(tuple(args), number, torch.Tensor), mapped(dict(kwargs), number, torch.Tensor)
        states = [("", given.get_state())] if isinstance(given, torch.Generator) else _states(tensors)
        return _Before(
            args=there,
            kwargs=named,
            tensors=tensors,
            versions=[_version(t) for t in tensors],
            context=context,
            random=states,
            given=given if isinstance(given, torch.Generator) else None,
        )

    def _after(self, name: str, func: Any, before: _Before, out: Any) -> None:
        changed = [t for t, v in zip(before.tensors, before.versions, strict=True) if _version(t) != v]
        numbers = tuple(dict.fromkeys(self._known[id(t)].number for t in changed))
        made = list(_tensors(out))
        drawn = _drawn(before)
        if name in HOOKS:
            self._doubt("a hook on a tensor's gradient, which a replay does not call")
            return
        if not (made or numbers or drawn or name in READS or name in EFFECTS):
            return
        for t in changed:
            self._mark_changed(t)
        module, place, inner = self._where()
        kwargs = before.kwargs
        if made and not before.tensors and made[0].device.type != "cpu" and "device" not in kwargs:
            kwargs = kwargs | {"device": made[0].device}  # from a default that a replay may not have
        op = Op(
            name=name,
            call=func,
            args=before.args,
            kwargs=kwargs,
            out=self._outputs(out, changed, before) if made else None,
            context=before.context,
            drawn=drawn,
            changed=numbers,
            module=module,
            place=place,
            inner=inner,
        )
        self.ops.append(op)
        if len(self.ops) > MOST_OPS:
            self.broken = f"the step has more than {MOST_OPS} calls"

    def _outputs(self, out: Any, changed: list[torch.Tensor], before: _Before) -> Any:
        """The result with a Ref for each tensor; one that the call changed in place has a new number from here on."""
        anew = {id(t) for t in changed}
        numbers = (self._known[id(t)].number for t in before.tensors)
        families = {self._storage[n]: self.family[n] for n in numbers}

        def number(t: torch.Tensor) -> Ref:
            known = self._find(t)
            if known is not None and id(t) not in anew:
                return Ref(known.number)
            anew.discard(id(t))
            return Ref(self._enlist(t, leaf=False, families=families))

        return mapped(out, number, torch.Tensor)

    # -- backward

    def backward_begins(self, tensors: Any, options: Mapping[str, Any]) -> int | None:
        """Records a call of torch.autograd.backward; its place in `ops`. None where it can't be."""
        position: int | None = self._guarded(self._backward, tensors, options)
        return position

    def _backward(self, tensors: Any, options: Mapping[str, Any]) -> int | None:
        if self.broken:
            return None

        def number(t: torch.Tensor) -> Ref:
            return Ref(self._number(t))

        module, place, inner = self._where()
        self.ops.append(
            Op(
                name=BACKWARD,
                call=_BACKWARD,
                args=(mapped(_listed(tensors), number, torch.Tensor),),
                kwargs=mapped({k: v for k, v in options.items() if v is not None}, number, torch.Tensor),
                context=self._context(),
                module=module,
                place=place,
                inner=inner,
            )
        )
        return len(self.ops) - 1

    def keep_gradients(self) -> dict[int, torch.Tensor]:
        """Copies of the gradients that parameters have now: number → gradient, without those that have none."""
        kept = {}
        for number, tensor in self.live():
            if tensor.grad is not None:
                kept[number] = tensor.grad.detach().clone()
        return kept

    def live(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Number and tensor of the leaves that want a gradient and are alive, as last numbered."""
        for known in list(self._known.values()):
            tensor = known.reference()
            if known.leaf and known.trained and tensor is not None and tensor.is_leaf:
                yield known.number, tensor

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
        part: Pruned = prune(self.ops, sorted(backwards), self.leaves, self.family)
        if not part.losses:
            msg = "no backward call was recorded"
            raise ValueError(msg)
        before = before or {}
        statistics = {n: p.read() for n, p in self._statistics.items()}
        values = {n: replace(self.values[n], statistics=statistics.get(n)) for n in part.numbers}
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
            doubts=(*dict.fromkeys(self.doubts), *_carried(leaves.values()), *self._hooked(leaves)),
        )

    def _hooked(self, leaves: Iterable[int]) -> Iterator[str]:
        for number, tensor in self.live():
            hooks = getattr(tensor, "_backward_hooks", None) or getattr(tensor, "_post_accumulate_grad_hooks", None)
            if number in leaves and hooks:
                name = self.leaves[number].name or "a tensor"
                yield f"a hook on the gradient of {name}, which a replay does not call"

    def _doubt(self, text: str) -> None:
        if text not in self.doubts:
            self.doubts.append(text)

    # -- numbers

    def _find(self, t: torch.Tensor) -> _Known | None:
        known = self._known.get(id(t))
        return known if known is not None and known.reference() is t else None

    def _number(self, t: torch.Tensor) -> int:
        known = self._find(t)
        if known is not None and not self._changed_elsewhere(t, known):
            return known.number
        return self._enlist(t, leaf=True)

    def _changed_elsewhere(self, t: torch.Tensor, known: _Known) -> bool:
        """Whether something that was not recorded changed the tensor, so that it has to be a leaf anew."""
        if known.leaf and known.trained != t.requires_grad and t.is_leaf:
            return True
        version = _version(t)
        if version != known.version:
            storage = self._storage[known.number]
            explained = self._dirty.get(storage, 0) != self._seen_dirty.get(known.number, 0)
            known.version, self._seen_dirty[known.number] = version, self._dirty.get(storage, 0)
            if not explained:
                return True
        if known.leaf and known.number not in self._checked:
            self._checked.add(known.number)
            same = not self.copy or known.number in self._changed or same_bits(self.leaves[known.number].value, t)
            return not same
        return False

    def _enlist(self, t: torch.Tensor, *, leaf: bool, families: Mapping[int, int] | None = None) -> int:
        number = len(self.values)
        storage = _storage(t)
        self.values[number] = Value(shape=tuple(t.shape), dtype=t.dtype, device=t.device, requires_grad=t.requires_grad)
        self._storage[number] = storage
        self.family[number] = families.get(storage, number) if families else number
        self._seen_dirty[number] = self._dirty.get(storage, 0)
        self._known[id(t)] = _Known(weakref.ref(t), number, _version(t), leaf, t.requires_grad)
        if leaf:
            self.leaves[number] = self._leaf(number, t)
            self._checked.add(number)
        if self.copy:
            self._statistics[number] = look(t.detach(), columns=leaf)
        return number

    def _leaf(self, number: int, t: torch.Tensor) -> Leaf:
        role, name = self._role(t)
        value = snapshot(t) if self.copy else t.detach()
        if self.copy:
            self.kept_bytes += value.numel() * value.element_size()
            if self.kept_bytes > self.most_bytes:
                self.broken = f"its copies of parameters and data need more than {self.most_bytes / 2**20:.0f} MiB"
        return Leaf(
            index=number,
            role=role,
            name=name,
            value=value,
            requires_grad=t.requires_grad,
            carried=t.requires_grad and not t.is_leaf,
        )

    def _role(self, t: torch.Tensor) -> tuple[Role, str]:
        owned = self.named.get(id(t))
        if owned is not None and owned[0] is t:
            return owned[1], owned[2]
        given = self._inputs.get(id(t))
        if given is not None and given[0]() is t:
            return Role.INPUT, given[1]
        if isinstance(t, nn.Parameter):
            return Role.PARAMETER, ""
        outside = self._calls > 0 and not self._roots and t.ndim > 0
        return (Role.TARGET if outside else Role.CONSTANT), ""

    def _mark_changed(self, t: torch.Tensor) -> None:
        known = self._known[id(t)]
        storage = self._storage[known.number]
        self._changed.add(known.number)
        self._dirty[storage] = self._dirty.get(storage, 0) + 1
        known.version, self._seen_dirty[known.number] = _version(t), self._dirty[storage]

    # -- what stands around a call

    def _context(self) -> Context:
        kinds = ("cpu", "cuda") if torch.cuda.is_initialized() else ("cpu",)  # type: ignore[no-untyped-call]
        on = tuple((k, torch.get_autocast_dtype(k)) for k in kinds if torch.is_autocast_enabled(k))
        grad = torch.is_grad_enabled() if self._grad is None else self._grad
        return Context(grad=grad, autocast=on, cache=torch.is_autocast_cache_enabled(), scope=self._scope if on else 0)

    def _where(self) -> tuple[str, Place, str]:
        """Innermost module, the user's line, and the library's line in between."""
        module: str | None = None
        inner = ""
        frame = sys._getframe(1)
        while frame is not None:
            code = frame.f_code
            file = code.co_filename
            if code is _CALL and module is None:
                module = self.paths.get(id(frame.f_locals.get("self")))
            elif is_user_file(file):
                return self._module(module, frame), place_at(file, frame.f_lineno), inner
            elif not inner and f"{_SEP}torch{_SEP}" not in file and "whyloss" not in file:
                inner = f"{file}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return module or "", Place(), inner

    def _module(self, found: str | None, frame: Any) -> str:
        while found is None and frame is not None:
            if frame.f_code is _CALL:
                found = self.paths.get(id(frame.f_locals.get("self")))
            frame = frame.f_back
        return found or ""


_SEP = os.sep
_names: dict[Any, str] = {}


def _name(func: Any) -> str:
    """torch.softmax, torch.Tensor.data, torch.Tensor.data.__set__; the qualified name of what torch doesn't list."""
    known = _names.get(func)
    if known is None:
        listed = resolve_name(func) or f"{getattr(func, '__module__', '')}.{getattr(func, '__qualname__', repr(func))}"
        known = _names[func] = listed.removesuffix(".__get__")
    return known


def _restore(owner: Any, name: str, ours: Any, before: Any) -> None:
    """Undoes a patch, unless somebody patched it once more."""
    if vars(owner).get(name) is not ours:
        return
    if before is None:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


def _listed(tensors: Any) -> tuple[Any, ...]:
    return tuple(tensors) if isinstance(tensors, tuple | list) else (tensors,)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from _tensors(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from _tensors(item)


def _arguments(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a module is given, each with the name of its parameter: x, batch[0], batch['labels']."""
    try:
        names = [p.name for p in inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        names = []
    positional = {names[i] if i < len(names) else f"args[{i}]": a for i, a in enumerate(args)}
    for name, value in {**positional, **kwargs}.items():
        yield from _within(name, value)


def _within(name: str, tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from _within(f"{name}[{key!r}]", item)
    elif isinstance(tree, tuple | list):
        for i, item in enumerate(tree):
            yield from _within(f"{name}[{i}]", item)


def _version(t: torch.Tensor) -> int:
    return -1 if t.is_inference() else t._version


def _storage(t: torch.Tensor) -> int:
    """The same number for tensors that share memory."""
    try:
        return int(t.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped
        return -id(t)


def snapshot(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides: kernels choose their way by them."""
    with torch.inference_mode(False):
        t = t.detach()
        if t.layout != torch.strided or t.numel() == 0:
            return t.clone()
        folded = tuple(
            slice(0, 1) if s == 0 and n > 1 else slice(None) for s, n in zip(t.stride(), t.shape, strict=True)
        )
        if slice(0, 1) in folded:
            return snapshot(t[folded]).expand(t.shape)
        if t.is_contiguous() or t.is_contiguous(memory_format=torch.preserve_format) or _extent(t) > 2 * t.numel():
            return t.clone()
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def _extent(t: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in shape, type and every value; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout != torch.strided:
        return bool(torch.equal(a.to_dense(), b.detach().to_dense()))
    b = b.detach()
    if torch.equal(a, b):
        return True
    return a.is_floating_point() and bool(((a == b) | ((a != a) & (b != b))).all())


def _states(tensors: Iterable[torch.Tensor]) -> list[tuple[str, torch.Tensor]]:
    """The states of the default generators that a call with these tensors may draw from."""
    states = [("cpu", torch.get_rng_state())]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = {t.device.index for t in tensors if t.device.type == "cuda"} | {torch.cuda.current_device()}
        states += [(f"cuda:{i}", torch.cuda.get_rng_state(i)) for i in sorted(devices)]
    return states


def _drawn(before: _Before) -> tuple[Drawn, ...]:
    """The generators that are no longer in the state in which they were before the call."""
    if before.given is not None:
        (_, state) = before.random[0]
        return () if torch.equal(state, before.given.get_state()) else (Drawn("", state),)
    after = dict(_states(before.tensors))
    return tuple(Drawn(d, s) for d, s in before.random if d in after and not torch.equal(s, after[d]))


def _carried(leaves: Iterable[Leaf]) -> Iterator[str]:
    for leaf in leaves:
        if leaf.carried:
            yield f"{leaf.name or 'a tensor'} came into the step with a graph from before it"
