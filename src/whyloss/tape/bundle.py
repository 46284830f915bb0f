"""A recorded step on disk: a folder of two files that another machine replays without the user's code.

`tape.json` holds the calls by name, `tensors.safetensors` the leaves, the states of the generators and of the
optimizer, and what the step gave. Neither can hold code: names are looked up in a fixed list (`names`), arguments are
plain data (`arguments`), and a bundle that is read is checked in full before anything of it runs (`rehearse`).
Calls whose results left torch (`Tape.aside`) are not kept: no replay needs them.
"""

import os
import secrets
import shutil
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from whyloss.core.errors import Misuse, NothingToJudge
from whyloss.core.plain import speakable
from whyloss.tape.arguments import Unwritable, encode
from whyloss.tape.compare import reproduce
from whyloss.tape.contents import (
    TAPE,
    TENSORS,
    Contents,
    Figures,
    WrittenLeaf,
    WrittenOp,
    WrittenSetup,
    WrittenValue,
    figures_of,
)
from whyloss.tape.environment import environment
from whyloss.tape.names import call_of
from whyloss.tape.rehearse import where
from whyloss.tape.replay import Played, quiet, replay
from whyloss.tape.statistics import look
from whyloss.tape.stored import Stored, describe, values_of, write_tensors
from whyloss.tape.tape import Leaf, Op, Ref, Role, Setup, Tape, Value
from whyloss.tape.unpack import Bundle, read_bundle

__all__ = ["MOST_BYTES", "Bundle", "Unwritable", "read_bundle", "write_bundle"]

MOST_BYTES = 2**30  # of a bundle
# Calls that hold the user's own numbers in their arguments.
DATA = frozenset({"torch.tensor", "torch.as_tensor", "torch.scalar_tensor", "torch.Tensor.new_tensor"})


def write_bundle(tape: Tape, folder: str | Path, *, redact: bool = False, most_bytes: int = MOST_BYTES) -> Path:
    """Writes the tape to a new folder below `folder`, bundle-step<N> or the first of bundle-step<N>-2, … that is free,
    and returns it. Its losses and gradients are those of a replay: where the tape is faithful, those of the training.
    It is read back, replayed and compared before it is put there.

    `redact`: only the values of parameters are kept; of data, gradients and all that was computed from them shapes and
    statistics stay, and numbers that are arguments of calls. Such a bundle can be read, not replayed.

    Unwritable, with nothing written, for a step that can't be kept, that does not come out the same when it is read, or
    that takes more than `most_bytes`. Misuse where `folder` can't be written to.
    """
    folder = Path(folder)
    tape = _kept(tape, redact=redact)
    if not redact:
        _check_size(_leaf_bytes(tape), most_bytes)
    writing = _Writing(tape, _played(tape), redact=redact)
    _check_size(writing.bytes, most_bytes)
    temporary = folder / f".bundle-{secrets.token_hex(8)}"
    try:
        temporary.mkdir(parents=True)
        (temporary / TAPE).write_bytes(writing.json)
        write_tensors(temporary / TENSORS, writing.values)
        if not redact:
            _check_written(temporary)
        return _moved(temporary, folder / f"bundle-step{tape.step}")
    except OSError as error:
        msg = f"can't write a bundle in {folder}: {error.strerror or error}"
        raise Misuse(msg) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_written(folder: Path) -> None:
    try:
        difference = reproduce(folder).difference
    except NothingToJudge as error:
        difference = str(error).replace(str(folder), "it")
    if difference:
        msg = f"the step can't be kept: read back, it is not the same ({difference})"
        raise Unwritable(msg)


def _moved(temporary: Path, target: Path) -> Path:
    """Puts the folder there in one go, under the first name that is free."""
    number = 1
    while True:
        candidate = target if number == 1 else target.with_name(f"{target.name}-{number}")
        number += 1
        if candidate.exists() or candidate.is_symlink():
            continue
        try:
            os.rename(temporary, candidate)
        except (FileExistsError, NotADirectoryError):
            continue
        except OSError:
            if candidate.exists():  # somebody was faster
                continue
            raise
        return candidate


def _check_size(size: int, most: int) -> None:
    if size > most:
        msg = f"the step takes {size / 2**20:.3g} MiB; a bundle may take {most / 2**20:.3g} MiB (most_bytes)"
        raise Unwritable(msg)


def _leaf_bytes(tape: Tape) -> int:
    return sum(leaf.value.numel() * leaf.value.element_size() for leaf in tape.leaves.values())


def _played(tape: Tape) -> Played:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the training has had them
            return replay(tape)
    except Exception as error:
        msg = f"the step can't be kept: its replay fails ({type(error).__name__}: {error})"
        raise Unwritable(msg) from error


def _kept(tape: Tape, *, redact: bool) -> Tape:
    """The tape without what no replay needs, and with calls on the user's own arrays replaced by what they gave:
    torch.as_tensor(array) becomes a leaf."""
    ops, leaves = [], dict(tape.leaves)
    with quiet(tape), torch.no_grad():
        for i, op in enumerate(tape.ops):
            reason = _unwritable(op) or ("numbers of the data" if redact and op.name in DATA else "")
            if not reason:
                ops.append(op)
            elif _is_data(op, tape):
                number = op.outputs[0]
                value = op.call(*op.args, **op.kwargs).clone()
                leaves[number] = Leaf(index=number, role=Role.CONSTANT, name="", value=value)
            else:
                raise Unwritable(f"{where(i, op)} can't be kept: {reason}")
    used = {n for op in ops for n in (*op.inputs, *op.outputs)} | set(tape.losses)
    return replace(
        tape,
        ops=tuple(ops),
        leaves={n: leaf for n, leaf in leaves.items() if n in used},
        values={n: value for n, value in tape.values.items() if n in used},
        aside=(),
    )


def _unwritable(op: Op) -> str:
    """Why a call can't be written; "" where it can."""
    if isinstance(getattr(op.call, "__self__", None), type):
        owner = op.call.__self__  # type: ignore[attr-defined]
        if issubclass(owner, torch.autograd.Function):
            return "it is a custom autograd.Function, kept as a call of your own code"
    if call_of(op.name) is None:
        return "it is not among the calls that a bundle may hold"
    try:
        encode(op.args), encode(dict(op.kwargs)), encode(op.out)
    except Unwritable as error:
        return str(error)
    return ""


def _is_data(op: Op, tape: Tape) -> bool:
    """Whether a call only brings numbers of the user's to torch."""
    alone = not op.inputs and not op.changed and not op.drawn and type(op.out) is Ref
    return alone and op.name.startswith("torch.") and not tape.values[op.outputs[0]].requires_grad


class _Writing:
    """The two files, in memory."""

    def __init__(self, tape: Tape, played: Played, *, redact: bool) -> None:
        self.redact = redact
        self.stored: dict[str, Stored] = {}
        self.values: dict[str, torch.Tensor] = {}
        for n, leaf in tape.leaves.items():
            self._put(f"leaf.{n}", leaf.value, keep=leaf.role is Role.PARAMETER)
            if leaf.before is not None:
                self._put(f"before.{n}", _dense(leaf.before))
        for i, loss in enumerate(played.losses):
            self._put(f"loss.{i}", loss)
        for n, gradient in played.gradients.items():
            if gradient is not None:
                self._put(f"gradient.{n}", _dense(gradient))
        contents = Contents(
            format=1,
            environment=environment(v.device for v in tape.values.values()),
            step=tape.step,
            trace=tape.trace,
            training=tape.training,
            modes=dict(tape.modes),
            dtype=_name(tape.dtype),
            tolerance=tape.tolerance,
            faithful=tape.faithful,
            reason=tape.reason,
            doubts=tape.doubts,
            redacted=redact,
            leaves={n: _written_leaf(leaf) for n, leaf in tape.leaves.items()},
            values={n: _written_value(value) for n, value in tape.values.items()},
            ops=tuple(self._op(i, op) for i, op in enumerate(tape.ops)),
            losses=tape.losses,
            gradients={
                n: None if g is None else figures_of(look(_dense(g)).read()) for n, g in played.gradients.items()
            },
            setup=self._setup(tape.setup),
            tensors=self.stored,
        )
        self.json = msgspec.json.encode(speakable(msgspec.to_builtins(contents, str_keys=True)))

    @property
    def bytes(self) -> int:
        return len(self.json) + sum(one.bytes for one in self.stored.values())

    def _put(self, key: str, t: torch.Tensor, *, keep: bool = False) -> str:
        self.stored[key] = one = describe(t, withheld=self.redact and not keep)
        if not one.withheld:
            self.values[key] = values_of(t, one)
        return key

    def _op(self, i: int, op: Op) -> WrittenOp:
        for k, drawn in enumerate(op.drawn):
            self._put(f"drawn.{i}.{k}", drawn.state)
        return WrittenOp(
            name=op.name,
            args=encode(op.args),
            kwargs=encode(dict(op.kwargs)),
            out=encode(op.out),
            grad=op.context.grad,
            autocast=tuple((kind, _name(dtype)) for kind, dtype in op.context.autocast),
            cache=op.context.cache,
            scope=op.context.scope,
            drawn=tuple(drawn.device for drawn in op.drawn),
            changed=op.changed,
            module=op.module,
            place=op.place,
            inner=op.inner,
        )

    def _setup(self, setup: Setup | None) -> WrittenSetup | None:
        """Settings that are no plain data are left out: no replay needs them."""
        if setup is None:
            return None
        groups = [self._plain(f"groups.{i}", group) for i, group in enumerate(setup.groups)]
        state = None
        if setup.state is not None:
            state = {str(n): self._plain(f"state.{n}", kept) for n, kept in setup.state.items()}
        attributes = self._plain("attributes", setup.attributes)
        kind = f"{setup.kind.__module__}.{setup.kind.__qualname__}"
        return WrittenSetup(kind=kind, groups=groups, state=state, attributes=attributes)

    def _plain(self, key: str, tree: Mapping[str, Any]) -> dict[str, Any]:
        kept = {}
        for name, value in tree.items():
            new: list[str] = []

            def tensor(t: torch.Tensor, name: str = name, new: list[str] = new) -> str:
                new.append(self._put(f"{key}.{name}.{len(new)}", _dense(t)))
                return new[-1]

            try:
                kept[name] = encode(value, tensor)
            except Unwritable:
                for k in new:
                    del self.stored[k]
                    self.values.pop(k, None)
        return kept


def _dense(t: torch.Tensor) -> torch.Tensor:
    return t if t.layout == torch.strided else t.to_dense()


def _figures(gradient: torch.Tensor | None) -> Figures | None:
    return None if gradient is None else figures_of(look(_dense(gradient)).read())


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


def _written_leaf(leaf: Leaf) -> WrittenLeaf:
    return WrittenLeaf(
        role=leaf.role,
        name=leaf.name,
        requires_grad=leaf.requires_grad,
        before=leaf.before is not None,
        carried=leaf.carried,
    )


def _written_value(value: Value) -> WrittenValue:
    return WrittenValue(
        shape=value.shape,
        dtype=_name(value.dtype),
        device=str(value.device),
        requires_grad=value.requires_grad,
        statistics=None if value.statistics is None else figures_of(value.statistics),
    )
