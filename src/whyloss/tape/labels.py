"""The labels of a step as leaves of its tape, where the step picks or converts them itself: `loss(model(x), y[i])`."""

from dataclasses import replace

import torch

from whyloss.tape.prune import RESHAPING
from whyloss.tape.replay import Player, quiet
from whyloss.tape.tape import Leaf, Op, Role, Tape

DATA = (Role.TARGET, Role.CONSTANT)
PICKING = RESHAPING | {"torch.index_select", "torch.Tensor.index_select", "torch.Tensor.int", "torch.Tensor.bool"}


def with_labels(tape: Tape) -> Tape:
    """The same step, in which what is picked from targets is a target itself, and the calls that picked it are gone.
    The tape as it is where nothing is, or where such values are written to.
    """
    made, labels = _picked(tape)
    wanted = frozenset(n for op in tape.ops for n in op.inputs if n in labels and not _is_made(op, made))
    data = made | {n for n, leaf in tape.leaves.items() if _is_data(leaf)}
    if not wanted or any(n in data for op in tape.ops for n in op.changed):
        return tape
    ops = tuple(op for op in tape.ops if _is_made(op, made))
    with quiet(tape), torch.no_grad():
        player = Player(replace(tape, ops=ops, losses=()), wanted)
        env = player.bind({})
        player.run(env, backward=False)
        found = {n: Leaf(index=n, role=Role.TARGET, name="", value=env[n].detach()) for n in wanted}
    return _with(tape, found)


def _with(tape: Tape, found: dict[int, Leaf]) -> Tape:
    """Without what only these values needed."""
    needed, kept = set(tape.losses), []
    for op in reversed(tape.ops):
        if not op.outputs or op.changed or any(n in needed and n not in found for n in op.outputs):
            kept.append(op)
            needed.update(op.inputs)
    leaves = {n: leaf for n, leaf in tape.leaves.items() if n in needed or leaf.role is Role.PARAMETER}
    return replace(tape, ops=tuple(reversed(kept)), leaves=leaves | found, aside=())


def _picked(tape: Tape) -> tuple[set[int], set[int]]:
    """The values that are picked from data other than the model's inputs; and those that targets have a part in."""
    data = {n for n, leaf in tape.leaves.items() if _is_data(leaf)}
    labels = {n for n in data if tape.leaves[n].role is Role.TARGET}
    for op in tape.ops:
        if op.name in PICKING and all(n in data for n in op.inputs):
            data.update(op.outputs)
            labels.update(op.outputs if any(n in labels for n in op.inputs) else ())
    return data - tape.leaves.keys(), labels - tape.leaves.keys()


def _is_made(op: Op, made: set[int]) -> bool:
    return bool(op.outputs) and all(n in made for n in op.outputs)


def _is_data(leaf: Leaf) -> bool:
    return leaf.role in DATA and not leaf.requires_grad and not leaf.carried
