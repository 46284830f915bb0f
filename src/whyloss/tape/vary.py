"""The same step on other data or in another precision."""

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from whyloss.tape.edit import Refused, checked
from whyloss.tape.prune import LOSSES, RESHAPING
from whyloss.tape.replay import Player, quiet
from whyloss.tape.tape import Context, Leaf, Op, Ref, Role, Setup, Tape, mapped, refs

PRECISE = {torch.complex32: torch.complex128, torch.complex64: torch.complex128} | {
    dtype: torch.float64 for dtype in (torch.float16, torch.bfloat16, torch.float32)
}
CASTS = {f"torch.Tensor.{name}": torch.Tensor.double for name in ("float", "half", "bfloat16")} | {
    f"torch.Tensor.{name}": torch.Tensor.cdouble  # type: ignore[attr-defined]
    for name in ("cfloat", "chalf")
}
SHAPED = frozenset(
    f"torch.{owner}{name}"
    for owner in ("", "Tensor.")
    for name in (
        *("view", "reshape", "expand", "broadcast_to", "zeros", "ones", "full", "empty", "rand", "randn", "randint"),
        *("arange", "eye", "new_zeros", "new_ones", "new_full", "new_empty", "narrow"),
    )
)
Reading = Callable[[int, int, int], bool]  # axis of the first size that equals the batch's, axes, how many equal it
READINGS: tuple[Reading, ...] = (
    lambda axis, axes, equal: axis == 0,
    lambda axis, axes, equal: axis == 0 or equal == 1,
    lambda axis, axes, equal: axis == 0 and axes > 1,
    lambda axis, axes, equal: axes > 1 and (axis == 0 or equal == 1),
    lambda axis, axes, equal: False,
)
SCALING = frozenset(f"torch.Tensor.{name}" for name in ("div", "__truediv__", "mul", "__mul__", "__rmul__"))


def with_leaves(tape: Tape, values: Mapping[int | str, torch.Tensor]) -> Tape:
    """With other values in these leaves, given by number or name. Refused where the step doesn't run on them."""
    leaves = dict(tape.leaves)
    for key, value in values.items():
        leaf = _leaf(tape, key)
        leaves[leaf.index] = replace(leaf, value=value.detach().clone(), before=None)
    names = ", ".join(str(key) for key in values)
    return checked(replace(tape, leaves=leaves), f"other values in {names}", tape)


def in_double(tape: Tape) -> Tape:
    """With float64 everywhere: leaves, dtypes that are asked for, casts; without autocast.

    Numbers that the step draws are those that it drew when it was recorded. On CUDA, dropout may draw other ones.
    """
    tape_of_draws = _with_drawn_values(tape)
    ops = tuple(_precise_op(op) for op in tape_of_draws.ops)
    leaves = {n: _precise_leaf(leaf) for n, leaf in tape_of_draws.leaves.items()}
    setup = tape.setup and _precise_setup(tape.setup)
    doubts = tape.doubts
    if any(d.device.startswith("cuda") for op in ops for d in op.drawn):
        doubts = (*doubts, "an op draws numbers on CUDA, which may be other ones in float64")
    double = replace(tape_of_draws, ops=ops, leaves=leaves, setup=setup, dtype=torch.float64, doubts=doubts)
    return checked(double, "float64 everywhere", tape)


def batch_subset(tape: Tape, rows: Sequence[int]) -> Tape:
    """With some examples of the batch only, along axis 0 of inputs and targets.

    Sizes that were written into the calls follow, in the one way in which the step also runs on a longer batch, where
    nothing broadcasts by accident; divisions by a number that equals the size are left as they are, and named in
    `doubts`. Refused where no batch size is found, or the step runs in none of these ways.
    """
    size = batch_size(tape)
    chosen = list(rows)
    if not chosen or min(chosen) < -size or max(chosen) >= size:
        msg = f"the batch has {size} rows; {chosen} are not some of them"
        raise Refused(msg)
    lengths = {n for value in tape.values.values() for n in value.shape}
    longer = next(n for n in itertools.count(size + 1) if n not in lengths)
    reading = _reading(tape, size, [i % size for i in range(longer)])
    part = _on_rows(tape, size, [i % size for i in chosen], reading)
    part = replace(part, doubts=(*tape.doubts, *_divisions(tape.ops, size)))
    return checked(part, f"{len(chosen)} of {size} rows of the batch", tape)


def batch_size(tape: Tape) -> int:
    """The length of axis 0 that inputs and targets share. Refused where they share none."""
    lengths = Counter(leaf.value.shape[0] for leaf in tape.of(Role.INPUT) if leaf.value.ndim)
    targets = {leaf.value.shape[0] for leaf in tape.of(Role.TARGET) if leaf.value.ndim}
    if not lengths:
        msg = "no tensor was given to the model: there is no batch"
        raise Refused(msg)
    shared = [n for n, _ in lengths.most_common() if not targets or n in targets]
    if not shared:
        msg = f"inputs have {_numbers(lengths)} rows, targets {_numbers(targets)}: they share no batch size"
        raise Refused(msg)
    if targets - set(shared):
        msg = f"targets have {_numbers(targets)} rows, inputs {_numbers(lengths)}: not all are along the batch"
        raise Refused(msg)
    return shared[0]


def zeroed_inputs(tape: Tape) -> Tape:
    """With zeros in all inputs but masks (bool, or whole numbers that are all 0 or 1). A target that is also an input
    keeps its values where it goes into a loss of torch.nn.functional. Refused where there is nothing to zero."""
    apart = _targets_apart(tape)
    inputs = [leaf for leaf in apart.of(Role.INPUT) if not _is_mask(leaf.value)]
    if not inputs:
        msg = "the model was given no tensor but masks"
        raise Refused(msg)
    zeros = {leaf.index: replace(leaf, value=torch.zeros_like(leaf.value)) for leaf in inputs}
    return checked(replace(apart, leaves={**apart.leaves, **zeros}), "inputs set to zero", tape)


def permuted_targets(tape: Tape, permutation: Sequence[int]) -> Tape:
    """With the targets in another order along axis 0. Refused where none has as many rows as `permutation`."""
    order = torch.as_tensor(list(permutation), dtype=torch.long)
    if sorted(permutation) != list(range(len(order))):
        msg = f"{list(permutation)} is no permutation"
        raise Refused(msg)
    apart = _targets_apart(tape)
    targets = [leaf for leaf in apart.of(Role.TARGET) if leaf.value.ndim and len(leaf.value) == len(order)]
    if not targets:
        msg = f"no target has {len(order)} rows"
        raise Refused(msg)
    moved = {leaf.index: replace(leaf, value=_take(leaf.value, order)) for leaf in targets}
    return checked(replace(apart, leaves={**apart.leaves, **moved}), "targets permuted", tape)


# -- leaves


def _leaf(tape: Tape, key: int | str) -> Leaf:
    try:
        return tape.named(key) if isinstance(key, str) else tape.leaves[key]
    except KeyError:
        msg = f"the tape has no leaf {key!r}"
        raise Refused(msg) from None


def _take(value: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    return value.detach().index_select(0, index.to(value.device))


def _is_mask(value: torch.Tensor) -> bool:
    if value.is_floating_point() or value.is_complex():
        return False
    return value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())


def _numbers(found: Iterable[int]) -> str:
    return " or ".join(str(n) for n in sorted(set(found))) or "no"


# -- float64


def _precise(tree: Any) -> Any:
    def change(dtype: torch.dtype) -> torch.dtype:
        return PRECISE.get(dtype, dtype)

    return mapped(tree, change, torch.dtype)


def _precise_op(op: Op) -> Op:
    reinterprets = op.name == "torch.Tensor.view" and any(isinstance(a, torch.dtype) for a in op.args)
    if reinterprets:
        msg = f"{op.name} reads the bits of a tensor as another type"
        raise Refused(msg)
    context = Context(grad=op.context.grad)
    if op.name in CASTS:
        call = CASTS[op.name]
        return replace(op, name=f"torch.Tensor.{call.__name__}", call=call, context=context)
    args = tuple(_precise_name(a) if op.name == "torch.Tensor.type" else a for a in op.args)
    return replace(op, args=_precise(args), kwargs=_precise(dict(op.kwargs)), context=context)


def _precise_name(kind: Any) -> Any:
    """float64 for what Tensor.type is given: "torch.FloatTensor" or that class."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return torch.float64 if text.rpartition(".")[2] in ("FloatTensor", "HalfTensor", "BFloat16Tensor") else kind


def _precise_tensor(t: torch.Tensor) -> torch.Tensor:
    return t.detach().to(PRECISE.get(t.dtype, t.dtype))


def _precise_leaf(leaf: Leaf) -> Leaf:
    before = None if leaf.before is None else _precise_tensor(leaf.before)
    return replace(leaf, value=_precise_tensor(leaf.value), before=before)


def _precise_setup(setup: Setup) -> Setup:
    """Counters of steps, of no axes, stay as they are."""

    def change(t: torch.Tensor) -> torch.Tensor:
        return _precise_tensor(t) if t.ndim else t

    state = None if setup.state is None else {n: mapped(dict(s), change, torch.Tensor) for n, s in setup.state.items()}
    return replace(setup, state=state, attributes=mapped(dict(setup.attributes), change, torch.Tensor))


def _with_drawn_values(tape: Tape) -> Tape:
    """With leaves in place of ops that only draw numbers: in float64 the same generator gives other ones."""
    drawing = [i for i, op in enumerate(tape.ops) if op.drawn and _only_draws(tape, op)]
    if not drawing:
        return tape
    kept: dict[int, torch.Tensor] = {}

    def then(i: int, op: Op) -> None:
        if i in drawing:
            kept.update((n, env[n].detach().clone()) for n in op.outputs)

    with quiet(tape):
        player = Player(tape)
        env = player.bind({})
        player.run(env, backward=False, then=then)
    ops = tuple(op for i, op in enumerate(tape.ops) if i not in drawing)
    made = {n: Leaf(index=n, role=Role.CONSTANT, name="", value=t) for n, t in kept.items()}
    return replace(tape, ops=ops, leaves={**tape.leaves, **made})


def _only_draws(tape: Tape, op: Op) -> bool:
    """Whether the values that an op gives depend on the generator and on no value of the tape."""
    name = op.name.rpartition(".")[2]
    like = name in ("rand_like", "randn_like", "randint_like", "new_empty")
    floating = all(tape.values[n].dtype.is_floating_point for n in op.outputs)
    return floating and bool(op.outputs) and not op.changed and (like or not op.inputs)


# -- part of a batch


def _reading(tape: Tape, size: int, rows: Sequence[int]) -> Reading:
    """Which sizes in the calls mean the batch."""
    for reading in READINGS[:-1]:
        try:
            checked(_on_rows(tape, size, rows, reading), "", tape)
        except Refused:
            continue
        return reading
    return READINGS[-1]


def _on_rows(tape: Tape, size: int, rows: Sequence[int], reading: Reading) -> Tape:
    index = torch.tensor(rows, dtype=torch.long)
    leaves = {n: _rows(leaf, size, index) for n, leaf in tape.leaves.items()}
    return replace(tape, leaves=leaves, ops=tuple(_resized(op, size, len(rows), reading) for op in tape.ops))


def _rows(leaf: Leaf, size: int, index: torch.Tensor) -> Leaf:
    along = leaf.role in (Role.INPUT, Role.TARGET) and leaf.value.ndim > 0 and len(leaf.value) == size
    return replace(leaf, value=_take(leaf.value, index)) if along else leaf


def _resized(op: Op, size: int, rows: int, reading: Reading) -> Op:
    if op.name not in SHAPED:
        return op
    given = 1 if op.inputs else 0  # the tensor comes first
    shape = op.args[given:]
    nested = len(shape) > 0 and isinstance(shape[0], tuple | list)
    sizes = list(shape[0]) if nested else list(shape)
    places = [i for i, n in enumerate(sizes) if type(n) is int and n == size]
    if not places or not reading(places[0], len(sizes), len(places)):
        return op
    sizes[places[0]] = rows
    new = (tuple(sizes), *shape[1:]) if nested else tuple(sizes)
    return replace(op, args=(*op.args[:given], *new))


def _divisions(ops: Iterable[Op], size: int) -> Iterator[str]:
    for op in ops:
        numbers = [a for a in op.args if type(a) in (int, float)]
        if op.name in SCALING and any(n == size or (n and math.isclose(n, 1 / size)) for n in numbers):
            yield f"{op.name} by {numbers[0]:g} may mean the size of the batch, and was left as it is"


# -- targets that are inputs, too


def _targets_apart(tape: Tape) -> Tape:
    """With a leaf of its own for each target of a loss that the model was also given as an input."""
    for i, op in enumerate(tape.ops):
        if op.name in LOSSES:
            tape = _apart(tape, i)
    return tape


def _apart(tape: Tape, i: int) -> Tape:
    op = tape.ops[i]
    given = op.kwargs.get("target", op.args[1] if len(op.args) > 1 else None)
    if not isinstance(given, Ref):
        return tape
    chain = list(_reshapings(tape, given.index))
    source = chain[-1].inputs[0] if chain else given.index
    leaf = tape.leaves.get(source)
    if leaf is None or leaf.role is not Role.INPUT:
        return tape
    return _with_own_target(tape, i, given.index, chain, leaf)


def _reshapings(tape: Tape, number: int) -> Iterator[Op]:
    """The ops that only reshape what becomes this value, from the last to the first."""
    made = {n: op for op in tape.ops for n in op.outputs if n not in op.inputs}  # contiguous() may give it itself
    while number in made and made[number].name in RESHAPING and len(made[number].inputs) == 1:
        yield made[number]
        number = made[number].inputs[0]


def _with_own_target(tape: Tape, i: int, target: int, chain: Sequence[Op], leaf: Leaf) -> Tape:
    first = max((*tape.values, *tape.leaves)) + 1
    numbers = {leaf.index: first} | {op.outputs[0]: first + 1 + k for k, op in enumerate(chain)}

    def change(ref: Ref) -> Ref:
        return Ref(numbers.get(ref.index, ref.index))

    def changed(op: Op) -> Op:
        return replace(op, args=mapped(op.args, change, Ref), kwargs=mapped(dict(op.kwargs), change, Ref))

    copies = tuple(replace(changed(op), out=mapped(op.out, change, Ref)) for op in reversed(chain))
    loss = tape.ops[i]
    arguments = [j for j, a in enumerate(loss.args) if j == 1 and any(r.index == target for r in refs(a))]
    args = tuple(change(a) if j in arguments else a for j, a in enumerate(loss.args))
    kwargs = {k: change(a) if k == "target" else a for k, a in loss.kwargs.items()}
    ops = (*tape.ops[:i], *copies, replace(loss, args=args, kwargs=kwargs), *tape.ops[i + 1 :])
    own = replace(leaf, index=first, role=Role.TARGET)
    values = {**tape.values, first: tape.values[leaf.index]}
    values |= {numbers[op.outputs[0]]: tape.values[op.outputs[0]] for op in chain}
    return replace(tape, ops=ops, leaves={**tape.leaves, first: own}, values=values)
