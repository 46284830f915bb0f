"""Runs a tape from a stranger without values first, on torch's `meta` device, to see what it would ask for.

A number among the arguments can ask for any amount of memory: torch.zeros([10**12]), x.expand(10**6, 10**6). Only
calls whose result depends on values can't be tried like that; those are bounded when they run.
"""

import contextlib
import math
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whyloss.core.errors import NothingToJudge
from whyloss.tape.generators import GENERATOR
from whyloss.tape.names import FACTORIES, GRAD
from whyloss.tape.replay import quiet
from whyloss.tape.stored import is_shape, shown
from whyloss.tape.tape import BACKWARD, Op, Ref, Tape, Value, mapped, refs

MOST_CALLS = 2_000_000  # of torch's kernels
MOST_ELEMENTS = 2**40  # of a view, which needs no memory
MOST_PARTS = 2**20  # tensors that one call gives
META = torch.device("meta")
_READ_GRAD = "torch.Tensor.grad"
_MOVES = frozenset({"torch.Tensor.cpu", "torch.Tensor.cuda"})  # meta has nothing to move


class TooLarge(NothingToJudge):
    pass


def rehearsed(tape: Tape) -> Tape:
    """The tape, with calls that depend on values bounded. NothingToJudge, before anything has run with values, where a
    call fails, gives something else than the tape says, or wants more memory than there is."""
    for number, value in tape.values.items():
        if not is_shape(value.shape):
            raise NothingToJudge(f"tensor {number} has an impossible shape, {shown(value.shape)}")
    with quiet(tape), torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch's; the training has had them
        _Rehearsal(tape).run()
    return replace(tape, ops=tuple(_bounded(op, tape.values) for op in tape.ops))


def where(i: int, op: Op) -> str:
    """How a message names a call."""
    line = f", {op.place.file}:{op.place.line}" if op.place.file else ""
    return f"call {i} ({op.name}{line})"


class _Rehearsal:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.env = {n: torch.empty_like(leaf.value, device=META) for n, leaf in tape.leaves.items()}
        self.memory = _Memory(tape)

    def run(self) -> None:
        with _Limits(self.memory.most) as limits:
            for i, op in enumerate(self.tape.ops):
                limits.calls = 0
                try:
                    self._step(op)
                except TooLarge as error:
                    raise NothingToJudge(f"{where(i, op)} {error}") from error
                except _Otherwise as error:
                    raise NothingToJudge(f"{where(i, op)} {error}") from error
                self.memory.after(i, op, self.env)

    def _step(self, op: Op) -> None:
        if op.name == BACKWARD:
            return
        self._keep(op, op.out, self._gradients(op) if op.name in (GRAD, _READ_GRAD) else self._called(op))

    def _gradients(self, op: Op) -> Any:
        """Gradients have the form of what they are taken for; nothing else can be said without a graph."""
        of = op.args[0] if op.name == _READ_GRAD else op.kwargs.get("inputs", op.args[1] if len(op.args) > 1 else ())
        like = [torch.empty_like(self.env[r.index]) for r in refs(of)]
        return like[0] if op.name == _READ_GRAD and like else tuple(like)

    def _called(self, op: Op) -> Any:
        args, kwargs = self._given(op, op.args), self._given(op, dict(op.kwargs))
        if kwargs.get("generator") is GENERATOR:
            del kwargs["generator"]
        if op.name in FACTORIES:
            kwargs["device"] = META
        try:
            return args[0].clone() if op.name in _MOVES else op.call(*args, **kwargs)
        except TooLarge:
            raise
        except Exception as error:
            if op.name in _BOUNDS:
                return self._declared(op)
            raise _Otherwise(f"can't be run: {_first_line(error)}") from error

    def _given(self, op: Op, tree: Any) -> Any:
        """The arguments on meta. Autocast, which does not know meta, is replaced by one dtype for all."""

        def tensor(r: Ref) -> torch.Tensor:
            t = self.env[r.index]
            return t.float() if op.context.autocast and t.is_floating_point() and not op.changed else t

        return mapped(mapped(tree, tensor, Ref), lambda d: META, torch.device)

    def _declared(self, op: Op) -> Any:
        return mapped(op.out, lambda r: self._blank(self.tape.values[r.index]), Ref)

    def _blank(self, value: Value) -> torch.Tensor:
        return torch.empty(value.shape, dtype=value.dtype, device=META)

    def _keep(self, op: Op, there: Any, out: Any) -> None:
        if type(there) is Ref:
            self.env[there.index] = self._same(op, there.index, out)
        elif isinstance(there, dict):
            self._keep_all(op, there, out, type(out) is dict and there.keys() <= out.keys() and list(there))
        elif isinstance(there, tuple | list):
            fits = isinstance(out, tuple | list) and len(out) == len(there) and list(range(len(there)))
            self._keep_all(op, there, out, fits)

    def _keep_all(self, op: Op, there: Any, out: Any, keys: Any) -> None:
        if keys is False:
            raise _Otherwise("gives something of another form than the tape says")
        for key in keys:
            self._keep(op, there[key], out[key])

    def _same(self, op: Op, number: int, out: Any) -> torch.Tensor:
        value = self.tape.values[number]
        if not isinstance(out, torch.Tensor):
            raise _Otherwise(f"gives no tensor, where the tape has tensor {number}")
        if out.shape != value.shape:
            raise _Otherwise(f"gives the shape {shown(tuple(out.shape))}, but the tape says {shown(value.shape)}")
        if out.dtype == value.dtype:
            return out
        if not op.context.autocast:
            raise _Otherwise(f"gives {out.dtype}, but the tape says {value.dtype}")
        return out.to(value.dtype)


class _Otherwise(Exception):
    """A call does something else than the tape says."""


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


# -- memory


class _Memory:
    """What the tensors of the step hold at once: those still to be used, and those kept for the next backward."""

    def __init__(self, tape: Tape) -> None:
        self.most = memory_of({v.device for v in tape.values.values()})
        self.last = {n: i for i, op in enumerate(tape.ops) for n in (*op.inputs, *op.outputs)}
        self.seen: dict[int, torch.UntypedStorage] = {}
        self.held: dict[int, tuple[int, int, bool]] = {}  # storage → bytes, last use, made with a graph
        self.total = 0

    def after(self, i: int, op: Op, env: Mapping[int, torch.Tensor]) -> None:
        for n in op.outputs:
            storage = env[n].untyped_storage()
            bytes_, last, graph = self.held.get(storage._cdata, (0, 0, op.context.grad))
            self.seen[storage._cdata] = storage
            self.total += storage.nbytes() - bytes_
            self.held[storage._cdata] = (storage.nbytes(), max(last, self.last[n]), graph)
        if self.total > self.most:
            self._free(i, graphs=False)
        if op.name == BACKWARD and not op.kwargs.get("retain_graph"):
            self._free(i, graphs=True)
        if self.total > self.most:
            raise NothingToJudge(f"{where(i, op)} brings the step to {_size(self.total)}{_there(self.most)}")

    def _free(self, i: int, *, graphs: bool) -> None:
        for storage, (bytes_, last, graph) in list(self.held.items()):
            if last <= i and (graphs or not graph):
                del self.held[storage], self.seen[storage]
                self.total -= bytes_


class _Limits(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Stops a call that asks for more than there is, in whatever kernel of it."""

    def __init__(self, most: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.calls = most, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        self.calls += 1
        if self.calls > MOST_CALLS:
            raise TooLarge(f"takes more than {MOST_CALLS} steps")
        if _parts(func, args) > MOST_PARTS:
            raise TooLarge(f"gives more than {MOST_PARTS} tensors")
        if not any(isinstance(a, torch.Tensor) for a in tree_leaves((args, kwargs))) and _takes_device(func):
            kwargs["device"] = META
        out = func(*args, **kwargs)
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                self._check(t)
        return out

    def _check(self, t: torch.Tensor) -> None:
        if t.is_meta and t.untyped_storage().nbytes() > self.most:
            raise TooLarge(f"wants {_size(t.untyped_storage().nbytes())}{_there(self.most)}")
        if t.numel() > MOST_ELEMENTS:
            raise TooLarge(f"makes a tensor of shape {shown(tuple(t.shape))}, of more than {MOST_ELEMENTS} elements")


def _takes_device(func: Any) -> bool:
    return any(argument.name == "device" for argument in func._schema.arguments)


def _parts(func: Any, args: Any) -> int:
    """How many tensors a split gives, which makes them all before anybody can look."""
    name = func._schema.name.removeprefix("aten::").removeprefix("unsafe_").removesuffix("_copy")
    if name not in ("unbind", "split") or not args or not isinstance(args[0], torch.Tensor) or not args[0].ndim:
        return 0
    longest = max(args[0].shape)
    step = args[1] if name == "split" and len(args) > 1 and isinstance(args[1], int) else 1
    return int(longest // max(1, step))


def memory_of(devices: set[torch.device]) -> int:
    """Bytes that this machine has for tensors on these devices."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 2**36
    with contextlib.suppress(OSError, ValueError):
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text()))  # of a container
    cuda = {d for d in devices if d.type == "cuda"}
    return total + sum(torch.cuda.mem_get_info(d)[1] for d in cuda)


def _size(count: int) -> str:
    return f"{count / 2**30:.3g} GiB" if count >= 2**30 else f"{count / 2**20:.3g} MiB"


def _there(most: int) -> str:
    return f"; this machine has {_size(most)}"


# -- calls whose result depends on values


@dataclass(frozen=True)
class Bounded:
    """A call that first says, of the values it is given, how many elements it would make at most."""

    call: Callable[..., Any]
    bound: Callable[..., float]
    shapes: tuple[tuple[int, ...], ...]
    most: int

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        wanted = self.bound(*args, **kwargs)
        if wanted > self.most:
            raise TooLarge(f"wants a tensor of {wanted:.3g} elements, far more than the tape says")
        out = self.call(*args, **kwargs)
        for t, shape in zip(_tensors(out), self.shapes, strict=False):
            if len(t.shape) != len(shape) or any(n > most for n, most in zip(t.shape, shape, strict=True)):
                raise TooLarge(f"gives the shape {shown(tuple(t.shape))}, but the tape says {shown(shape)}")
        return out


def _bounded(op: Op, values: Mapping[int, Value]) -> Op:
    bound = _BOUNDS.get(op.name)
    if bound is None:
        return op
    largest = max((math.prod(values[n].shape) for n in (*op.inputs, *op.outputs)), default=0)
    shapes = tuple(values[r.index].shape for r in refs(op.out))
    return replace(op, call=Bounded(op.call, bound, shapes, most=64 * max(largest, 2**16)))


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (t for t in tree_leaves(tree) if isinstance(t, torch.Tensor))


def _never_larger(*args: Any, **kwargs: Any) -> float:
    """Of each tensor that it is given a few elements at most."""
    return float(sum(t.numel() for t in _tensors((args, kwargs))))


def _indices(t: Any, *args: Any, **kwargs: Any) -> float:
    return float(t.numel() * max(1, t.ndim))


def _where(condition: Any, *args: Any, **kwargs: Any) -> float:
    if not args and not kwargs:
        return _indices(condition)
    return _broadcast(condition, *args, **kwargs)


def _broadcast(*args: Any, **kwargs: Any) -> float:
    shapes = [t.shape for t in _tensors((args, kwargs))]
    return float(math.prod(torch.broadcast_shapes(*shapes)))  # type: ignore[no-untyped-call]


def _indexed(t: torch.Tensor, index: Any, *rest: Any) -> float:
    """As torch does it: a mask stands for the indices at which it is true. Tried without the values."""
    plain: list[Any] = []
    for part in index if isinstance(index, tuple) else (index,):
        if isinstance(part, torch.Tensor) and part.dtype in (torch.bool, torch.uint8):
            plain += part.nonzero(as_tuple=True) if part.ndim else [None, slice(0, int(bool(part)))]
        else:
            plain.append(part)
    there = mapped(tuple(plain), lambda i: i.to(META) if i.ndim else int(i), torch.Tensor)
    return float(t.to(META)[there].numel())


def _repeated(t: Any, repeats: Any = None, *args: Any, **kwargs: Any) -> float:
    repeats = kwargs.get("repeats", t if repeats is None else repeats)
    if isinstance(repeats, int):
        return float(t.numel() * repeats)
    total = max(float(repeats.clamp(min=0).double().sum()), kwargs.get("output_size") or 0)
    return float(total * t.numel() / max(1, repeats.numel()))


def _one_hot(t: Any, num_classes: int = -1) -> float:
    return float(t.numel() * max(num_classes, _highest(t) + 1))


def _counted(t: Any, weights: Any = None, minlength: int = 0) -> float:
    return float(max(minlength, _highest(t) + 1))


def _highest(t: Any) -> float:
    return float(t.max()) if t.numel() else 0.0


def _ctc(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *args: Any, **kwargs: Any) -> float:
    lengths = torch.as_tensor(target_lengths)
    if lengths.numel() and (int(lengths.max()) > targets.numel() or int(lengths.min()) < 0):
        return math.inf
    return float(log_probs.numel() + targets.numel())


def _padded(data: Any, batch_sizes: Any, *args: Any) -> float:
    length = max([len(batch_sizes), *(a for a in args if type(a) is int)])
    per = data.numel() / max(1, len(data))
    return float(length * _highest(batch_sizes) * per)


def _filled(*size: Any, **kwargs: Any) -> float:
    """A size may be a tensor, that of a packed batch is."""
    return float(math.prod(int(n) for n in tree_leaves((size, kwargs.get("size", ())))))


def _full(size: Any, *args: Any, **kwargs: Any) -> float:
    return _filled(size)


_BOUNDS: dict[str, Callable[..., float]] = {
    "torch.functional.unique": _never_larger,
    "torch.functional.unique_consecutive": _never_larger,
    "torch.Tensor.unique": _never_larger,
    "torch.Tensor.unique_consecutive": _never_larger,
    "torch.nonzero": _indices,
    "torch.Tensor.nonzero": _indices,
    "torch.argwhere": _indices,
    "torch.Tensor.argwhere": _indices,
    "torch.where": _where,
    "torch.Tensor.where": _where,
    "torch.masked_select": _broadcast,
    "torch.Tensor.masked_select": _broadcast,
    "torch.Tensor.__getitem__": _indexed,
    "torch.Tensor.__setitem__": _indexed,
    "torch.repeat_interleave": _repeated,
    "torch.Tensor.repeat_interleave": _repeated,
    "torch.nn.functional.one_hot": _one_hot,
    "torch.bincount": _counted,
    "torch.Tensor.bincount": _counted,
    "torch.nn.functional.ctc_loss": _ctc,
    "torch.ctc_loss": _ctc,
    "torch._VariableFunctionsClass._pack_padded_sequence": _never_larger,
    "torch._VariableFunctionsClass._pad_packed_sequence": _padded,
    "torch.empty": _filled,
    "torch.full": _full,
    "torch.ones": _filled,
    "torch.rand": _filled,
    "torch.randn": _filled,
    "torch.zeros": _filled,
    "torch.lstm": _never_larger,
    "torch.gru": _never_larger,
    "torch.rnn_tanh": _never_larger,
    "torch.rnn_relu": _never_larger,
}
