"""Finds the first non-finite value of a recorded step by playing the tape under the taint."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from whyloss.core.finding import Place
from whyloss.core.location import BadLeaf, Location, NonFinite, Phase, Range
from whyloss.core.statistics import Statistics
from whyloss.tape.nonfinite import is_nonfinite, ranged, values
from whyloss.tape.replay import Played, replay
from whyloss.tape.taint import Arisen, Taint
from whyloss.tape.tape import Leaf, Op, Role, Tape

_ORDER = (Role.INPUT, Role.TARGET, Role.CONSTANT, Role.BUFFER, Role.PARAMETER)  # weights are bad because data were
_SQUARING = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta"})  # keep the squares
_MOST_NAMES = 3


def locate(tape: Tape) -> Location:
    """The earliest leaf or call whose non-finite result reaches a loss or a gradient of the tape.

    What a call raises in the replay passes through.
    """
    bad = _bad_leaves(tape)
    found = _located(tape, bad)
    doubts: tuple[str, ...] = () if tape.faithful else (f"the tape is not faithful: {tape.reason}",)
    if found.leaf is not None and not any(tape.leaves[n].role is Role.PARAMETER for n in bad):
        without = _located(tape, {n: t if _is_mask(tape.leaves[n]) else _repaired(t) for n, t in bad.items()})
        if without.phase is not Phase.NONE:
            doubts += (f"with finite values in its place the step fails, too: {without.text}",)
    return replace(found, doubts=doubts)


def _located(tape: Tape, leaves: Mapping[int, torch.Tensor]) -> Location:
    """With these in place of the recorded leaves."""
    taint = Taint()
    for leaf in sorted(leaves, key=lambda n: _ORDER.index(tape.leaves[n].role)):
        _seed(taint, tape.leaves[leaf], leaves[leaf])
    with taint:
        played = replay(tape, leaves, watch=lambda i, op: taint.begins(i))
    return _judged(tape, taint, played)


# -- leaves


def _bad_leaves(tape: Tape) -> dict[int, torch.Tensor]:
    """Fresh copies of the leaves that are non-finite, or whose gradient was so before the first backward."""
    found = {}
    for number, leaf in tape.leaves.items():
        before = leaf.before is not None and is_nonfinite(leaf.before)
        if before or is_nonfinite(leaf.value):
            found[number] = leaf.value.clone().requires_grad_(leaf.requires_grad)
            found[number].grad = leaf.before.clone() if leaf.before is not None else None
    return found


def _repaired(tensor: torch.Tensor) -> torch.Tensor:
    """The mean of the finite elements for those that are not. Without the gradient that it had."""
    value = tensor.detach()
    if value.layout != torch.strided:
        return torch.zeros_like(value).requires_grad_(tensor.requires_grad)
    finite = values(value)[values(value).isfinite()]
    mean = float(finite.mean()) if finite.numel() and not value.is_complex() else 0.0
    return value.masked_fill(~value.isfinite(), mean).requires_grad_(tensor.requires_grad)


def _seed(taint: Taint, leaf: Leaf, tensor: torch.Tensor) -> None:
    if is_nonfinite(tensor):
        taint.seed(tensor, leaf.index, deliberate=_is_mask(leaf))
    if tensor.grad is not None and is_nonfinite(tensor.grad):
        taint.seed(tensor.grad, leaf.index, deliberate=False)


def _is_mask(leaf: Leaf) -> bool:
    """Infinities beside one value at most (0 and -inf, say) are there on purpose; in weights they never are."""
    value = values(leaf.value)
    finite = value[value.isfinite()]
    constant = finite.numel() == 0 or bool((finite == finite[0]).all())
    wrong = value.isnan() | (value == math.inf) if leaf.role in (Role.INPUT, Role.TARGET) else value.isnan()
    return leaf.role is not Role.PARAMETER and constant and not bool(wrong.any())


# -- judging


def _judged(tape: Tape, taint: Taint, played: Played) -> Location:
    losses = [loss for loss in played.losses if is_nonfinite(loss)]
    gradients = {n: g for n, g in played.gradients.items() if g is not None and is_nonfinite(g)}
    if not losses and not gradients:
        return _overflow(tape, played) or Location(phase=Phase.NONE, text="Losses and gradients are all finite.")
    names = _names(tape, gradients)
    arisen = taint.cause([*losses, *gradients.values()])
    if arisen is None:
        phase = Phase.FORWARD if losses else Phase.BACKWARD
        what = "The loss is" if losses else "Gradients are"
        return Location(phase=phase, text=f"{what} non-finite; by which call is not known.", gradients=names)
    if arisen.leaf is not None:
        return replace(_leaf(tape, tape.leaves[arisen.leaf], arisen), gradients=names)
    op = tape.ops[arisen.op] if arisen.op is not None else None
    forward = losses and not arisen.node
    found = _forward(arisen, op) if forward else _backward(tape, taint, arisen, op, finite=not losses)
    return replace(_placed(found, op), became=arisen.became, deliberate=arisen.deliberate, gradients=names)


def _placed(found: Location, op: Op | None) -> Location:
    if op is None:
        return found
    return replace(found, op=op.name, module=op.module, place=op.place, inner=op.inner)


def _leaf(tape: Tape, leaf: Leaf, arisen: Arisen) -> Location:
    assert arisen.became is not None
    bad = BadLeaf(role=leaf.role.value, name=leaf.name, values=arisen.became)
    if leaf.role in (Role.PARAMETER, Role.BUFFER):
        place = Place(parameter=leaf.name or None)
    else:
        place = next((op.place for op in tape.ops if leaf.index in op.inputs), Place())
    what = f"{leaf.role.value} {leaf.name if leaf.name != leaf.role.value else ''}".strip()
    if not is_nonfinite(leaf.value):
        text = f"The gradient of {what} held {bad.values} before the step's first backward."
    elif leaf.role is Role.PARAMETER:
        text = f"The {what} holds {bad.values} before the step begins: an earlier update made it so."
    else:
        text = f"The {what} holds {_whereabouts(bad.values)} before any call."
    return Location(phase=Phase.LEAF, text=text, place=place, leaf=bad, became=bad.values, deliberate=arisen.deliberate)


def _forward(arisen: Arisen, op: Op | None) -> Location:
    name = op.name if op is not None else arisen.aten
    if arisen.deliberate:
        text = f"{name} writes {arisen.became} on purpose, and it reaches the loss."
    elif arisen.of_infinities:
        text = f"{name} makes {arisen.became} of infinities that were put there on purpose."
    else:
        text = f"{name} gives {arisen.became}{_given(arisen.inputs)}."
    return Location(phase=Phase.FORWARD, text=text, aten=arisen.aten, inputs=arisen.inputs)


def _backward(tape: Tape, taint: Taint, arisen: Arisen, op: Op | None, *, finite: bool) -> Location:
    """Also where a forward result is non-finite, does not reach the loss, and spoils a gradient all the same."""
    inputs = _operands(tape, op) or arisen.inputs
    consequence = taint.consequence(arisen) if not arisen.node else None
    node = arisen.node or (consequence.node if consequence is not None else "") or arisen.aten
    name = op.name if op is not None else ""
    if not arisen.node:
        text = f"{name} gives {arisen.became}{_given(inputs)}: not seen by the loss, but {node} makes nan of it."
    elif op is None:
        text = f"{node} gives {arisen.became} in backward; for which call is not known."
    else:
        loss = "The loss is finite, but the" if finite else "The loss is made of a gradient: the"
        text = f"{loss} gradient of {name} ({node}) is {arisen.became}{_given(inputs)}."
    return Location(phase=Phase.BACKWARD, text=text, aten=node, inputs=inputs)


def _overflow(tape: Tape, played: Played) -> Location | None:
    """All gradients are finite. Are their norm, as clipping takes it, and their squares, as Adam keeps them?"""
    gradients = {n: values(g.detach()) for n, g in played.gradients.items() if g is not None and g.numel()}
    squared = tape.setup is not None and tape.setup.kind.__name__ in _SQUARING
    what = _beyond(list(gradients.values()), squared=squared) if gradients else ""
    if not what:
        return None
    largest = {n: float(g.abs().max()) for n, g in gradients.items()}
    first = max(largest, key=lambda n: largest[n])
    name = tape.leaves[first].name
    text = f"All gradients are finite, but their {what}: {name or 'one'} has elements up to {largest[first]:.3g}."
    names = (name,) if name else ()
    place = Place(parameter=name or None)
    return Location(phase=Phase.OVERFLOW, text=text, place=place, inputs=(ranged(gradients[first]),), gradients=names)


def _beyond(gradients: list[torch.Tensor], *, squared: bool) -> str:
    """Which figure of these gradients overflows; "" none."""
    norm = torch.linalg.vector_norm
    wide = [norm(g, dtype=torch.promote_types(g.dtype, torch.float32)).cpu() for g in gradients]
    if not norm(torch.stack(wide) if len({n.dtype for n in wide}) == 1 else torch.tensor(wide)).isfinite():
        return f"norm is beyond {str(wide[0].dtype).removeprefix('torch.')}"
    if not all(norm(g).isfinite() for g in gradients):
        return "norm is beyond their own dtype"
    if squared and not all(g.abs().max().square().isfinite() for g in gradients):
        return "squares, which the optimizer keeps, are beyond their dtype"
    return ""


# -- words


def _names(tape: Tape, numbers: Mapping[int, object]) -> tuple[str, ...]:
    return tuple(tape.leaves[n].name for n in numbers if tape.leaves[n].name)


def _given(inputs: tuple[Range, ...]) -> str:
    return f" from {' and '.join(str(r) for r in inputs[:_MOST_NAMES])}" if inputs else ""


def _whereabouts(bad: NonFinite) -> str:
    parts = [str(bad), _listed("row", bad.rows, bad.bad_rows, bad.of_rows)]
    parts.append(_listed("column", bad.columns, bad.bad_columns, bad.of_columns))
    return ", ".join(part for part in parts if part)


def _listed(what: str, some: tuple[int, ...], number: int, total: int) -> str:
    if number == 0 or number == total:
        return ""
    numbers = ", ".join(map(str, some)) + (", …" if number > len(some) else "")
    return f"{what}{'s' if number > 1 else ''} {numbers} of {total}"


def _operands(tape: Tape, op: Op | None) -> tuple[Range, ...]:
    """Of the forward call's floating-point inputs, from what was noted while recording."""
    return tuple(_noted(tape, op)) if op is not None else ()


def _noted(tape: Tape, op: Op) -> Iterator[Range]:
    for number in op.inputs:
        value = tape.values.get(number)
        if value is not None and value.statistics is not None and value.dtype.is_floating_point:
            s: Statistics = value.statistics
            low, high = (None if not math.isfinite(x) else x for x in (s.low, s.high))
            kind = str(value.dtype).removeprefix("torch.")
            yield Range(low=low, high=high, dtype=kind, shape=value.shape, nonfinite=s.nonfinite)
