"""Repairs tried on a tape: each verb gives a new tape with one thing changed, or says why the graph doesn't allow it.

An edited tape was replayed once: its values are what that replay gave, and it is never `faithful`.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch.nn import init
from torch.overrides import get_testing_overrides, resolve_name

from whyloss.tape.replay import Player, quiet
from whyloss.tape.statistics import look
from whyloss.tape.tape import BACKWARD, READS, Drawn, Leaf, Op, Ref, Tape, Value, mapped, refs

EDITED = "edited: "
DETACHING = frozenset(("torch.detach", "torch.Tensor.detach", "torch.Tensor.detach_", "torch.Tensor.data"))
COPYING = frozenset(("torch.tensor", "torch.as_tensor", "torch.asarray", "torch.Tensor.new_tensor"))  # and detaching
SCHEMES = ("kaiming", "xavier", "zeros")


class Refused(Exception):
    """The recorded graph doesn't allow what was asked for. Says why."""


def find(tape: Tape, name: str, *, module: str | None = None) -> tuple[int, ...]:
    """Where in `tape.ops` the calls of that name stand. `name`: torch.softmax, or softmax for every way to call it."""
    return tuple(
        i
        for i, op in enumerate(tape.ops)
        if (op.name == name or op.name.rpartition(".")[2] == name) and module in (None, op.module)
    )


# -- verbs


def drop(tape: Tape, *ops: int) -> Tape:
    """Without these ops: each is replaced by the identity on its first tensor.

    Refused where an op gives another shape or dtype than that tensor has, or several results that are used.
    """
    edited = tape
    for i in sorted(set(ops), reverse=True):
        edited = _without(edited, i)
    return checked(edited, f"dropped {_list(tape, ops)}", tape)


def substitute(tape: Tape, op: int, call: Callable[..., Any] | str, *args: Any, **kwargs: Any) -> Tape:
    """With another call in the place of an op: its name in torch, or the call itself.

    `args` may hold Refs; without any it is given the tensors that the op was given, in order. Refused where the step
    no longer runs.
    """
    old = _op(tape, op)
    if len(old.outputs) > 1 or isinstance(old.out, dict):
        msg = f"{old.name} has {len(old.outputs)} results; one call can't stand for all of them"
        raise Refused(msg)
    call = _called(call)
    args = args or tuple(Ref(n) for n in old.inputs)
    new = replace(old, name=_name(call), call=call, args=args, kwargs=kwargs, changed=())
    new = replace(new, out=Ref(old.outputs[0])) if old.outputs else new
    edited = replace(tape, ops=(*tape.ops[:op], new, *tape.ops[op + 1 :]))
    return checked(edited, f"{_list(tape, (op,))} became {new.name}{_given(kwargs)}", tape)


def insert(
    tape: Tape, after: int, call: Callable[..., Any] | str, *args: Any, into: int | None = None, **kwargs: Any
) -> Tape:
    """With a call on the value numbered `after`, whose result takes that value's place in all that follows.

    `args`: what the call is given after the value; may hold Refs. `into`: only in this op is the value replaced.
    Refused where nothing uses the value, or the step no longer runs.
    """
    call = _called(call)
    position = _first_use(tape, after) if into is None else into
    made = position > 0 and after in tape.ops[position - 1].outputs
    beside = tape.ops[position - 1] if made else tape.ops[position]
    number = _unused(tape)
    new = Op(
        name=_name(call),
        call=call,
        args=(Ref(after), *args),
        kwargs=kwargs,
        out=Ref(number),
        context=beside.context,
        module=beside.module,
        place=beside.place,
    )
    edited = replace(tape, ops=(*tape.ops[:position], new, *tape.ops[position:]))
    if into is None:
        edited = _renamed(edited, after, number, position + 1)
    else:
        edited = _renamed_in(edited, after, number, position + 1)
    where = f"{'behind' if made else 'before'} {_shown(beside)}"
    return checked(edited, f"inserted {new.name}{_given(kwargs)} {where}", tape)


def with_argument(tape: Tape, op: int, name: str, value: Any) -> Tape:
    """With another value for one argument of an op that isn't a tensor: reduction="sum", dim=1, p=0.0.

    Refused where the call has no such parameter, a tensor stands there, or the step no longer runs.
    """
    old = _op(tape, op)
    position = _position(old, name)
    if name in old.kwargs or position is None or position >= len(old.args):
        before: Any = old.kwargs.get(name)
        new = replace(old, kwargs={**old.kwargs, name: value})
    else:
        before = old.args[position]
        new = replace(old, args=(*old.args[:position], value, *old.args[position + 1 :]))
    if any(True for _ in refs(before)):
        msg = f"{name} of {old.name} is a tensor of the step"
        raise Refused(msg)
    edited = replace(tape, ops=(*tape.ops[:op], new, *tape.ops[op + 1 :]))
    return checked(edited, f"{name}={value!r} in {_list(tape, (op,))}", tape)


def reattach(tape: Tape, *ops: int) -> Tape:
    """With the graph going on through ops that cut it: a detach, `.data`, a copy by torch.tensor, a call under no_grad.

    Refused where an op cuts nothing, has no derivative, or nothing before it wants a gradient.
    """
    edited = tape
    for i in sorted(set(ops), reverse=True):
        edited = _attached(edited, i)
    edited = checked(edited, f"reattached {_list(tape, ops)}", tape)
    for i in ops:
        _require_gradient(tape.ops[i], edited)
    return edited


def unfreeze(tape: Tape, leaf: int) -> Tape:
    """With a leaf that wants a gradient and that the optimizer of the tape, if any, trains in its first group."""
    old = _leaf(tape, leaf)
    if old.requires_grad:
        msg = f"{_called_leaf(old)} wants a gradient already"
        raise Refused(msg)
    if not (old.value.is_floating_point() or old.value.is_complex()):
        msg = f"{_called_leaf(old)} holds {old.value.dtype}: only floating-point tensors can have a gradient"
        raise Refused(msg)
    edited = replace(tape, leaves={**tape.leaves, leaf: replace(old, requires_grad=True)})
    setup = tape.setup
    if setup is not None and setup.groups and all(leaf not in g["params"] for g in setup.groups):
        first = {**setup.groups[0], "params": [*setup.groups[0]["params"], leaf]}
        edited = replace(edited, setup=replace(setup, groups=(first, *setup.groups[1:])))
    return checked(edited, f"unfroze {_called_leaf(old)}", tape)


def reinitialise(tape: Tape, leaf: int, values: torch.Tensor | str = "kaiming", *, seed: int = 0) -> Tape:
    """With other values in a leaf, and nothing that the optimizer kept for it. `values`: a tensor of its shape, or a
    scheme: kaiming (uniform, for ReLU), xavier (uniform), zeros. Draws from a generator of its own.
    """
    old = _leaf(tape, leaf)
    made = values if isinstance(values, torch.Tensor) else _initial(old, values, seed)
    if made.shape != old.value.shape:
        msg = f"{_called_leaf(old)} has shape {tuple(old.value.shape)}, the new values {tuple(made.shape)}"
        raise Refused(msg)
    with torch.no_grad():
        value = torch.empty_like(old.value).copy_(made)
    setup = tape.setup
    if setup is not None and setup.state is not None:
        setup = replace(setup, state={n: s for n, s in setup.state.items() if n != leaf})
    edited = replace(tape, leaves={**tape.leaves, leaf: replace(old, value=value)}, setup=setup)
    how = values if isinstance(values, str) else "given values"
    return checked(edited, f"reinitialised {_called_leaf(old)} with {how}", tape)


# -- what every verb ends with


def checked(edited: Tape, what: str, before: Tape) -> Tape:
    """The edited tape, with the values that a replay finds and the story of its edits. Refused where it doesn't run."""
    try:
        values, ops = _observed(edited)
    except Exception as error:
        text = str(error).splitlines()[0] if str(error) else ""
        msg = f"{what}: the edited step does not run: {type(error).__name__}: {text}"
        raise Refused(msg) from error
    aside = {n for op in edited.aside for n in (*op.inputs, *op.outputs)}
    kept = {n: v for n, v in edited.values.items() if n in aside}
    return replace(edited, ops=ops, values={**kept, **values}, faithful=False, reason=_story(before, what))


def _story(before: Tape, what: str) -> str:
    if before.reason.startswith(EDITED):
        return f"{before.reason}; {what}"
    doubt = "" if before.faithful or not before.reason else f" (unfaithful before: {before.reason})"
    return f"{EDITED}{what}{doubt}"


def _observed(tape: Tape) -> tuple[dict[int, Value], tuple[Op, ...]]:
    """Every value as a replay finds it; and the ops, with the state of the generator for those that draw only now."""
    values: dict[int, Value] = {}
    ops = list(tape.ops)
    states: dict[str, torch.Tensor] = {}

    def before(i: int, op: Op) -> None:
        states.update(_states(tape) if not op.drawn else {})

    def after(i: int, op: Op) -> None:
        if not op.drawn:
            now = _states(tape)
            drawn = tuple(Drawn(d, s) for d, s in states.items() if not torch.equal(s, now[d]))
            ops[i] = replace(op, drawn=drawn) if drawn else op
        values.update((n, _value(env[n])) for n in op.outputs)

    with quiet(tape):
        _seed(tape)
        player = Player(tape)
        env = player.bind({})
        values.update((n, _value(env[n], leaf=True)) for n in tape.leaves)
        player.run(env, watch=before, then=after)
    return values, tuple(ops)


def _seed(tape: Tape) -> None:
    """So that an op that is new draws the same at any time. torch.manual_seed would reach devices of others, too."""
    torch.set_rng_state(torch.Generator().manual_seed(0).get_state())
    for device in _devices(tape):
        torch.cuda.set_rng_state(torch.Generator(device).manual_seed(0).get_state(), device)


def _states(tape: Tape) -> dict[str, torch.Tensor]:
    return {"cpu": torch.get_rng_state(), **{d: torch.cuda.get_rng_state(d) for d in _devices(tape)}}


def _devices(tape: Tape) -> list[str]:
    return sorted({str(v.device) for v in tape.values.values() if v.device.type == "cuda"})


def _value(t: torch.Tensor, *, leaf: bool = False) -> Value:
    return Value(
        shape=tuple(t.shape),
        dtype=t.dtype,
        device=t.device,
        requires_grad=t.requires_grad,
        statistics=look(t.detach(), columns=leaf).read(),
    )


# -- ops and values


def _op(tape: Tape, i: int) -> Op:
    if not 0 <= i < len(tape.ops):
        msg = f"the tape has ops 0 to {len(tape.ops) - 1}, no {i}"
        raise Refused(msg)
    if tape.ops[i].name == BACKWARD:
        msg = "a backward call can't be edited"
        raise Refused(msg)
    return tape.ops[i]


def _leaf(tape: Tape, number: int) -> Leaf:
    if number not in tape.leaves:
        msg = f"value {number} is not a leaf of the tape"
        raise Refused(msg)
    return tape.leaves[number]


def _called_leaf(leaf: Leaf) -> str:
    return leaf.name or f"the unnamed {leaf.role} {leaf.index}"


def _list(tape: Tape, ops: Iterable[int]) -> str:
    """The ops by name and line."""
    return ", ".join(_shown(_op(tape, i)) for i in sorted(set(ops)))


def _shown(op: Op) -> str:
    return f"{op.name} at {op.place.file}:{op.place.line}" if op.place.file else op.name


def _without(tape: Tape, i: int) -> Tape:
    op = _op(tape, i)
    rest = {n for later in tape.ops[i + 1 :] for n in later.inputs}
    used = [n for n in op.outputs if n in rest]
    if len(used) > 1:
        msg = f"{op.name} has {len(used)} results that are used"
        raise Refused(msg)
    if not used:
        return replace(tape, ops=(*tape.ops[:i], *tape.ops[i + 1 :]))
    if not op.inputs:
        msg = f"{op.name} is given no tensor that could take its result's place"
        raise Refused(msg)
    old, new = used[0], op.inputs[0]
    _require_alike(op, tape.values[old], tape.values[new])
    return _identity(tape, i, new, old)


def _identity(tape: Tape, i: int, source: int, out: int) -> Tape:
    """With `source` for `out`; as a copy where an op behind it changes tensors in place."""
    op = tape.ops[i]
    if _changes(tape, i + 1, out):
        clone = replace(
            op, name="torch.clone", call=torch.clone, args=(Ref(source),), kwargs={}, out=Ref(out), drawn=(), changed=()
        )
        return replace(tape, ops=(*tape.ops[:i], clone, *tape.ops[i + 1 :]))
    return _renamed(replace(tape, ops=(*tape.ops[:i], *tape.ops[i + 1 :])), out, source, i)


def _changes(tape: Tape, start: int, like: int) -> bool:
    """Whether an op from `start` on changes something in place that may share memory with a value."""
    wanted = tape.values[like]
    changed = {n for op in tape.ops[start:] for n in op.changed}
    return any(tape.values[n].dtype == wanted.dtype and tape.values[n].device == wanted.device for n in changed)


def _require_alike(op: Op, made: Value, given: Value) -> None:
    for what, a, b in (("shape", made.shape, given.shape), ("dtype", made.dtype, given.dtype)):
        if a != b:
            msg = f"{op.name} gives {what} {a} from {b}: the identity can't take its place"
            raise Refused(msg)


def _renamed(tape: Tape, old: int, new: int, start: int) -> Tape:
    """With `new` in place of `old` in the ops from `start` on."""
    ops = (*tape.ops[:start], *(_rename(op, old, new) for op in tape.ops[start:]))
    aside = tuple(_rename(op, old, new) for op in tape.aside)
    losses = tuple(new if n == old else n for n in tape.losses)
    return replace(tape, ops=ops, aside=aside, losses=losses)


def _renamed_in(tape: Tape, old: int, new: int, i: int) -> Tape:
    """The same in one op only."""
    op = tape.ops[i]
    if old not in op.inputs:
        msg = f"{_shown(op)} is not given value {old}"
        raise Refused(msg)
    return replace(tape, ops=(*tape.ops[:i], _rename(op, old, new), *tape.ops[i + 1 :]))


def _rename(op: Op, old: int, new: int) -> Op:
    if old not in op.inputs:
        return op

    def change(ref: Ref) -> Ref:
        return Ref(new) if ref.index == old else ref

    changed = tuple(new if n == old else n for n in op.changed)
    kwargs: Mapping[str, Any] = mapped(dict(op.kwargs), change, Ref)
    return replace(op, args=mapped(op.args, change, Ref), kwargs=kwargs, changed=changed)


def _first_use(tape: Tape, number: int) -> int:
    """Just behind the op that made the value; for a leaf before the first op that uses it."""
    for i, op in enumerate(tape.ops):
        if number in op.outputs:
            return i + 1
        if number in op.inputs and number in tape.leaves:
            return i
    msg = f"the tape has no value {number} that is used"
    raise Refused(msg)


def _unused(tape: Tape) -> int:
    return max((*tape.values, *tape.leaves)) + 1


# -- calls and their arguments


def _called(call: Callable[..., Any] | str) -> Callable[..., Any]:
    found: Any = call
    if isinstance(call, str):
        found = torch
        for part in call.removeprefix("torch.").split("."):
            found = getattr(found, part, None)
    if not callable(found):
        msg = f"torch has no {call}"
        raise Refused(msg)
    if getattr(found, "__name__", "").endswith("_"):
        msg = f"{_name(found)} changes its tensor in place"
        raise Refused(msg)
    return found  # type: ignore[no-any-return]


def _name(call: Callable[..., Any]) -> str:
    qualified = f"{getattr(call, '__module__', '')}.{getattr(call, '__qualname__', repr(call))}"
    return resolve_name(call) or qualified


def _given(kwargs: Mapping[str, Any]) -> str:
    return f"({', '.join(f'{k}={v!r}' for k, v in kwargs.items())})" if kwargs else ""


def _position(op: Op, name: str) -> int | None:
    """Where the parameter stands in the signature of a call; None where that is not known."""
    parameters = _parameters(op.call)
    return parameters.index(name) if name in parameters else None


def _parameters(call: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the positional parameters; those of a builtin as torch lists them, () where nothing does."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for source in (call, _listed().get(call)):
        try:
            found = inspect.signature(source).parameters.values()  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        return tuple(p.name for p in found if p.kind in kinds)
    return ()


@lru_cache(maxsize=1)
def _listed() -> Mapping[Callable[..., Any], Callable[..., Any]]:
    return get_testing_overrides()


# -- cuts


def _attached(tape: Tape, i: int) -> Tape:
    op = _op(tape, i)
    if not op.context.grad:
        op = replace(op, context=replace(op.context, grad=True))
        tape = replace(tape, ops=(*tape.ops[:i], op, *tape.ops[i + 1 :]))
        return tape if op.name not in DETACHING | COPYING else _attached(tape, i)
    if op.name in DETACHING:
        return _identity(tape, i, op.inputs[0], op.outputs[0])
    if op.name in COPYING and op.inputs:
        return replace(tape, ops=(*tape.ops[:i], _copy(tape, op), *tape.ops[i + 1 :]))
    msg = f"{_shown(op)} does not cut the graph{_read(tape)}"
    raise Refused(msg)


def _copy(tape: Tape, op: Op) -> Op:
    """The same values with their graph."""
    source, out = op.args[1 if op.name == "torch.Tensor.new_tensor" else 0], tape.values[op.outputs[0]]
    if isinstance(source, Ref):
        made = replace(op, name="torch.Tensor.to", call=torch.Tensor.to, args=(source, out.device, out.dtype))
    elif isinstance(source, list | tuple) and all(isinstance(part, Ref) for part in source):
        made = replace(op, name="torch.stack", call=torch.stack, args=(list(source),))
    else:
        msg = f"{_shown(op)} makes a tensor from numbers, which nothing reattaches"
        raise Refused(msg)
    return replace(made, kwargs={}, changed=())


def _read(tape: Tape) -> str:
    """What is to be said where values left torch and may have come back as a constant."""
    reads = [op for op in tape.aside if op.name in READS]
    if not reads:
        return ""
    return f". {_shown(reads[0])} took a value out of torch: what is made of it is a constant, which nothing reattaches"


def _require_gradient(op: Op, after: Tape) -> None:
    """Refused where what an op gave still wants no gradient. A result that an edit took out was its input."""
    there = (n if n in after.values else op.inputs[0] for n in op.outputs)
    outputs = [after.values[n] for n in there if n in after.values]
    if not outputs or any(v.requires_grad for v in outputs):
        return
    if not any(v.dtype.is_floating_point or v.dtype.is_complex for v in outputs):
        msg = f"{_shown(op)} has no derivative: it gives {outputs[0].dtype}"
    elif not any(after.values[n].requires_grad for n in op.inputs if n in after.values):
        msg = f"nothing that leads to {_shown(op)} wants a gradient"
    else:
        msg = f"{_shown(op)} passes no gradient on"
    raise Refused(msg)


# -- values of leaves


def _initial(leaf: Leaf, scheme: str, seed: int) -> torch.Tensor:
    if scheme not in SCHEMES:
        msg = f"there is no scheme {scheme!r}; there are {', '.join(SCHEMES)}"
        raise Refused(msg)
    made = torch.zeros(leaf.value.shape)
    if scheme == "zeros":
        return made
    if made.ndim < 2:
        msg = f"{_called_leaf(leaf)} has {made.ndim} axes; {scheme} needs two"
        raise Refused(msg)
    generator = torch.Generator().manual_seed(seed)
    if scheme == "kaiming":
        return init.kaiming_uniform_(made, nonlinearity="relu", generator=generator)
    return init.xavier_uniform_(made, generator=generator)
