"""Reads a bundle that may come from a stranger: all of it is checked before anything of it runs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch

from whyloss.core.errors import Misuse, NothingToJudge
from whyloss.core.statistics import Statistics
from whyloss.tape.arguments import Reader, device_of, dtype_of, number_of, refusal
from whyloss.tape.contents import (
    FORMAT,
    TAPE,
    TENSORS,
    Contents,
    WrittenLeaf,
    WrittenOp,
    WrittenSetup,
    WrittenValue,
    statistics_of,
)
from whyloss.tape.environment import Environment
from whyloss.tape.names import call_of
from whyloss.tape.rehearse import rehearsed, where
from whyloss.tape.stored import read_tensors
from whyloss.tape.tape import BACKWARD, Context, Drawn, Leaf, Op, Setup, Tape, Value, refs

MOST_JSON = 2**28  # bytes of a tape.json that is read


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What a folder holds: the tape, where it was recorded, and what it gave there.

    `redacted`: without the values of the data, so that it can be looked at but not replayed; losses and gradients
    then have no values either. `gradients`: number of a leaf → its gradient, or None where none arrived.
    """

    folder: Path
    tape: Tape
    recorded: Environment
    losses: tuple[torch.Tensor, ...]
    gradients: Mapping[int, torch.Tensor | None]
    gradient_statistics: Mapping[int, Statistics]
    redacted: bool = False

    @property
    def nonfinite(self) -> bool:
        """Whether a loss or a gradient was not finite."""
        losses = (self.tape.values[n].statistics for n in self.tape.losses)
        figures = [s for s in (*losses, *self.gradient_statistics.values()) if s is not None]
        return any(s.nonfinite for s in figures)


def read_bundle(folder: str | Path) -> Bundle:
    """The bundle in a folder, checked in full: every call is on the list, every tensor is there and is what it is said
    to be, and a rehearsal without values asked for no more memory than there is. Nothing has run with values.

    Misuse where there is no such folder; NothingToJudge, which says what is wrong, for what is no bundle of ours.
    """
    folder = Path(folder)
    if not folder.is_dir():
        what = "is a file: give the folder it stands in" if folder.exists() else "does not exist"
        msg = f"{folder} {what}. A bundle is a folder called bundle-step<N>"
        raise Misuse(msg)
    for name in (TAPE, TENSORS):
        if not (folder / name).is_file():
            raise NothingToJudge(f"{folder} is no bundle: there is no {name} in it")
    try:
        return _read(folder)
    except NothingToJudge as error:
        raise NothingToJudge(f"{folder} can't be read as a bundle: {error}") from error
    except RecursionError as error:
        raise NothingToJudge(f"{folder} can't be read as a bundle: it is nested too deeply") from error


def _read(folder: Path) -> Bundle:
    contents = _contents(folder / TAPE)
    here = Reader(device=_here)
    tensors = read_tensors(folder / TENSORS, contents.tensors, here)
    reading = _Reading(contents, tensors)
    tape = reading.tape()
    _check(tape)
    losses = tuple(reading.taken(f"loss.{i}") for i in range(len(contents.losses)))
    arrived = {n: figures is not None for n, figures in contents.gradients.items()}
    gradients = {n: reading.taken(f"gradient.{n}") if there else None for n, there in arrived.items()}
    _check_given(tape, losses, gradients)
    if reading.left:
        raise refusal(f"a tensor that nothing uses, {min(reading.left)[:60]!r}")
    return Bundle(
        folder=folder,
        tape=tape if contents.redacted else rehearsed(tape),
        recorded=contents.environment,
        losses=losses,
        gradients=gradients,
        gradient_statistics={n: statistics_of(f) for n, f in contents.gradients.items() if f is not None},
        redacted=contents.redacted,
    )


class _Format(msgspec.Struct):
    format: int


def _contents(file: Path) -> Contents:
    if file.stat().st_size > MOST_JSON:
        raise NothingToJudge(f"its {TAPE} has more than {MOST_JSON / 2**20:.0f} MiB")
    text = file.read_bytes()
    try:
        given = msgspec.json.decode(text, type=_Format).format
        if given != FORMAT:
            msg = f"it has format {given}; this whyloss reads format {FORMAT}. Use the whyloss that wrote it"
            raise NothingToJudge(msg)
        return msgspec.json.decode(text, type=Contents)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NothingToJudge(f"its {TAPE} is not what it should be: {error}") from error


def _here(recorded: torch.device) -> torch.device:
    """The device to use in place of the one recorded: the same, or another of its kind, or the CPU."""
    if recorded.type == "cpu":
        return recorded
    there = getattr(torch, recorded.type)
    if not there.is_available():
        return torch.device("cpu")
    return recorded if (recorded.index or 0) < there.device_count() else torch.device(recorded.type, 0)


class _Reading:
    def __init__(self, contents: Contents, tensors: Mapping[str, torch.Tensor]) -> None:
        self.contents, self.tensors = contents, tensors
        self.left = set(tensors)
        self.reader = Reader(device=_here, tensor=None)

    def taken(self, key: str) -> torch.Tensor:
        if key not in self.tensors:
            raise refusal(f"no description of the tensor {key[:60]!r}")
        self.left.discard(key)
        t = self.tensors[key]
        if t.is_meta and not self.contents.redacted:
            raise refusal(f"no values for the tensor {key[:60]!r}, and yet does not call itself redacted")
        return t

    def tape(self) -> Tape:
        c = self.contents
        dtype = dtype_of(c.dtype)
        if not dtype.is_floating_point or dtype.itemsize < 2:
            raise refusal(f"{c.dtype} as the default dtype")
        return Tape(
            ops=tuple(self._op(i, op) for i, op in enumerate(c.ops)),
            leaves={n: self._leaf(n, leaf) for n, leaf in c.leaves.items()},
            values={n: self._value(value) for n, value in c.values.items()},
            losses=c.losses,
            step=c.step,
            trace=c.trace,
            setup=self._setup(c.setup) if c.setup is not None else None,
            modes=c.modes,
            training=c.training,
            dtype=dtype,
            tolerance=c.tolerance,
            faithful=c.faithful and not c.redacted,
            reason="the values of its data were left out" if c.redacted else c.reason,
            doubts=c.doubts,
        )

    def _leaf(self, number: int, leaf: WrittenLeaf) -> Leaf:
        value = self.taken(f"leaf.{number}")
        if leaf.requires_grad and not (value.is_floating_point() or value.is_complex()):
            raise refusal(f"leaf {number} of type {value.dtype} with a gradient")
        before = self.taken(f"before.{number}") if leaf.before else None
        if before is not None and (before.shape != value.shape or before.dtype != value.dtype):
            raise refusal(f"a gradient of leaf {number} that does not fit it")
        return Leaf(
            index=number,
            role=leaf.role,
            name=leaf.name,
            value=value,
            requires_grad=leaf.requires_grad,
            before=before,
            carried=leaf.carried,
        )

    def _value(self, value: WrittenValue) -> Value:
        return Value(
            shape=value.shape,
            dtype=dtype_of(value.dtype),
            device=_here(device_of(value.device)),
            requires_grad=value.requires_grad,
            statistics=None if value.statistics is None else statistics_of(value.statistics),
        )

    def _op(self, i: int, op: WrittenOp) -> Op:
        call = call_of(op.name)
        if call is None:
            raise refusal(f"the call {op.name[:80]!r}, which is not among those that a bundle may hold")
        args, kwargs, out = (self.reader.decode(part) for part in (op.args, op.kwargs, op.out))
        if type(args) is not tuple or type(kwargs) is not dict:
            raise refusal(f"call {i} ({op.name}) without a tuple and a dict of arguments")
        return Op(
            name=op.name,
            call=call,
            args=args,
            kwargs=kwargs,
            out=out,
            context=Context(grad=op.grad, autocast=_autocast(op.autocast), cache=op.cache, scope=op.scope),
            drawn=tuple(self._drawn(f"drawn.{i}.{k}", device) for k, device in enumerate(op.drawn)),
            changed=op.changed,
            module=op.module,
            place=op.place,
            inner=op.inner,
        )

    def _drawn(self, key: str, device: str) -> Drawn:
        state = self.taken(key)
        if state.dtype != torch.uint8 or state.ndim != 1 or state.numel() > 2**16:
            raise refusal(f"{tuple(state.shape)} {state.dtype} as the state of a generator")
        if device in ("", "cpu"):
            return Drawn(device, state)
        here = _here(device_of(device))
        if here.type != "cuda" and not self.contents.redacted:
            msg = f"the step draws random numbers on {device}, and this machine has no such device"
            raise NothingToJudge(msg)
        return Drawn(str(here), state)

    def _setup(self, setup: WrittenSetup) -> Setup:
        reader = Reader(device=_here, tensor=self.taken)
        groups = [_settings(reader, group) for group in _listed(setup.groups)]
        state = None
        if setup.state is not None:
            state = {_number(n): _settings(reader, kept) for n, kept in _mapping(setup.state).items()}
        for group in groups:
            group["params"] = [number_of(n, "a parameter's number") for n in _listed(group.get("params"))]
        attributes = _settings(reader, setup.attributes or {})
        return Setup(kind=_kind(setup.kind), groups=tuple(groups), state=state, attributes=attributes)


def _settings(reader: Reader, tree: Any) -> dict[str, Any]:
    return {name: reader.decode(value) for name, value in _mapping(tree).items()}


def _listed(tree: Any) -> list[Any]:
    if not isinstance(tree, list):
        raise refusal("settings of an optimizer that are no list")
    return tree


def _mapping(tree: Any) -> dict[str, Any]:
    if not isinstance(tree, dict):
        raise refusal("settings of an optimizer that are no mapping")
    return tree


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise refusal(f"{text[:60]!r} as a parameter's number")
    return int(text)


def _kind(name: str) -> type:
    """A class of torch's own, or one that has the name and nothing else."""
    space, _, last = name.rpartition(".")
    found = vars(torch.optim).get(last)
    if isinstance(found, type) and issubclass(found, torch.optim.Optimizer) and found.__module__ == space:
        return found
    return type(last or "Optimizer", (), {"__module__": space, "__doc__": "The name of a class that is not here."})


def _autocast(given: tuple[tuple[str, str], ...]) -> tuple[tuple[str, torch.dtype], ...]:
    for kind, dtype in given:
        if kind not in ("cpu", "cuda") or not dtype_of(dtype).is_floating_point or dtype_of(dtype).itemsize < 2:
            raise refusal(f"autocast to {dtype[:60]!r} on {kind[:60]!r}")
    return tuple((kind, dtype_of(dtype)) for kind, dtype in given)


# -- checking


def _check(tape: Tape) -> None:
    """Every tensor is made once, before it is used; leaves are what they are said to be."""
    known = set(tape.leaves)
    for i, op in enumerate(tape.ops):
        _check_numbers(i, op, known)
        known.update(op.outputs)
    if odd := known ^ tape.values.keys():
        what = "does not describe" if min(odd) in known else "describes, but does not make,"
        raise NothingToJudge(f"it {what} tensor {min(odd)}")
    for n, leaf in tape.leaves.items():
        value = tape.values[n]
        if tuple(leaf.value.shape) != value.shape or leaf.value.dtype != value.dtype:
            raise refusal(f"leaf {n} as {tuple(leaf.value.shape)} {leaf.value.dtype}, and describes it otherwise")
    if tape.losses != tuple(_starts(tape)):
        raise refusal("other losses than those from which its backward calls start")


def _check_numbers(i: int, op: Op, known: set[int]) -> None:
    if dangling := set(op.inputs) - known:
        raise NothingToJudge(f"{where(i, op)} uses tensor {min(dangling)}, which nothing before it makes")
    again = known.intersection(op.outputs) - set(op.inputs)
    if again and op.name != "torch.Tensor.grad":
        raise NothingToJudge(f"{where(i, op)} makes tensor {min(again)}, which there is already")
    if not set(op.changed) <= set(op.inputs):
        raise NothingToJudge(f"{where(i, op)} changes a tensor that it is not given")


def _starts(tape: Tape) -> Iterator[int]:
    for i, op in enumerate(tape.ops):
        if op.name == BACKWARD:
            if len(op.args) != 1 or type(op.args[0]) is not tuple or op.out is not None:
                raise NothingToJudge(f"{where(i, op)} is not given the losses alone")
            yield from (r.index for r in refs(op.args[0]))


def _check_given(tape: Tape, losses: tuple[torch.Tensor, ...], gradients: Mapping[int, torch.Tensor | None]) -> None:
    for n, loss in zip(tape.losses, losses, strict=True):
        if tuple(loss.shape) != tape.values[n].shape or loss.dtype != tape.values[n].dtype:
            raise refusal(f"a loss of {tuple(loss.shape)} {loss.dtype} for tensor {n}, and describes it otherwise")
    trained = {n for n, leaf in tape.leaves.items() if leaf.requires_grad}
    if trained != gradients.keys():
        raise refusal("gradients of other leaves than those that want one")
    for n, gradient in gradients.items():
        if gradient is not None and tuple(gradient.shape) != tape.values[n].shape:
            raise refusal(f"a gradient of {tuple(gradient.shape)} for tensor {n}, which has another shape")
