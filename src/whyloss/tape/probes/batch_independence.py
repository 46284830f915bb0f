"""batch-independence: does what is predicted of one example depend on another one of its batch?"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch

from whyloss.core import step_graph as plain
from whyloss.core.compared import Pair
from whyloss.core.probe import Probe
from whyloss.tape.probes.alignment import shift_of
from whyloss.tape.probes.bench import Bench, Made, NotMade, difference, unchanged
from whyloss.tape.tape import Leaf, Role

NAME = "batch-independence"
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
ATTENTION = ("multi_head_attention_forward",)
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
REDUCTIONS = frozenset(
    (
        *("mean", "sum", "std", "var", "var_mean", "std_mean", "amax", "amin", "max", "min", "norm", "vector_norm"),
        *("logsumexp", "median", "nanmean", "prod"),
    )
)
PICKING = frozenset(
    ("index_select", "gather", "flip", "roll", "take_along_dim", "index_add", "scatter", "scatter_add", "index_put")
)


@dataclass(frozen=True)
class Batch:
    """Along which axis of each input, and of the target, the examples lie."""

    pair: Pair
    size: int
    axes: Mapping[int, int]  # number of an input → axis
    target: Leaf
    sequences: bool  # the targets have the input's second axis, too: either may be the time

    def rows(self, prediction: torch.Tensor) -> torch.Tensor:
        return prediction.reshape(self.size, -1)


def probe(bench: Bench) -> Iterator[Probe]:
    """`leak`: other values in one example change what is predicted of others. `statistics`: they do so by means and
    the like over the batch alone. `indexed`: examples are picked by an index. `independent`: they don't."""
    batch = _batch(bench)
    one, effect = next(((i, e) for i in (batch.size // 2, batch.size - 1) if (e := _effect(bench, batch, i))), (0, 0.0))
    if not effect:
        yield bench.made(NAME, "independent", {"examples": batch.size}, place=batch.pair.op.place)
        return
    numbers = {"examples": batch.size, "effect": effect, "sequences": batch.sequences}
    if _by_statistics(bench, batch, one):
        yield bench.made(NAME, "statistics", numbers, place=batch.pair.op.place)
    elif picked := next(_picks(bench, batch), None):
        yield bench.made(NAME, "indexed", numbers, subject=picked.name, place=picked.place)
    else:
        yield _located(bench, batch, one, numbers)


# -- where the examples lie


def _batch(bench: Bench) -> Batch:
    pair = bench.one_pair()
    target = bench.tape.leaves[pair.leaf.value]
    if not bench.inputs:
        msg = "no data but masks are given to the model"
        raise NotMade(msg)
    if not target.value.ndim or len(target.value) < 3:
        msg = "the batch has fewer than three examples"
        raise NotMade(msg)
    size = len(target.value)
    prediction = bench.base[pair.prediction]
    rows = prediction.shape[0]
    if rows != size and (rows % size or rows != bench.base[pair.target].numel()):
        msg = f"there are {size} targets and {rows} predictions"
        raise NotMade(msg)
    if any(_is_relation(leaf, size) for leaf in bench.tape.leaves.values()):
        msg = "a matrix of examples by examples is given: they are meant to meet"
        raise NotMade(msg)
    axes = {leaf.index: _axis(leaf.value.shape, size) for leaf in bench.inputs if not _is_square(leaf)}
    lead = bench.inputs[0].value.shape
    each = bench.base[pair.target].shape == (rows,) == (size,)  # one label an example, picked from its target
    sequences = not each and target.value.ndim > 1 and lead[:2] == target.value.shape[:2] and target.value.shape[1] > 1
    if sequences and (shift := shift_of(bench, pair)) is not None:
        if shift.axis == 0:
            msg = "the first axis is the time"
            raise NotMade(msg)
        sequences = False
    return Batch(pair, size, axes, target, sequences)


def _axis(shape: torch.Size, size: int) -> int:
    places = [i for i, n in enumerate(shape) if n == size and (i < 2 or len(shape) == 2)]  # features come last
    if not places:
        msg = f"an input of shape {tuple(shape)} does not lie along the {size} examples"
        raise NotMade(msg)
    if len(places) > 1 and len(shape) > 2:
        msg = f"either of two axes of an input of shape {tuple(shape)} may be the examples'"
        raise NotMade(msg)
    return places[0]


def _is_relation(leaf: Leaf, size: int) -> bool:
    """An adjacency, or the like: data with two axes of examples, but for a batch whose examples are as long as it."""
    if leaf.role is Role.PARAMETER or tuple(leaf.value.shape[-2:]) != (size, size) or leaf.value.ndim > 3:
        return False
    return leaf.role is not Role.INPUT or bool((leaf.value != 0).double().mean() < 0.5)


def _is_square(leaf: Leaf) -> bool:
    """A mask of positions by positions."""
    return leaf.value.ndim == 2 and leaf.value.shape[0] == leaf.value.shape[1] and bool(leaf.value.isinf().any())


# -- what one example does to the others


def _others(bench: Bench, batch: Batch, one: int) -> dict[int, torch.Tensor]:
    leaves = bench.tape.leaves
    return {n: bench.other(leaves[n].value, axis, (one,)) for n, axis in batch.axes.items()}


def _effect(bench: Bench, batch: Batch, one: int, held: Made | None = None) -> float:
    """The largest change in the predictions of other examples, as a share of the largest of all. 0: none."""
    number = batch.pair.prediction
    before = bench.base[number]
    gap = batch.rows(difference(before, bench.play(_others(bench, batch, one), (number,), held)[number]))
    rest = _rest(gap, one)
    if not gap.isfinite().all():
        msg = "the step is not finite with other values"
        raise NotMade(msg)
    if float(rest.amax()) <= unchanged(before):
        return 0.0
    return float(rest.amax() / gap.amax())


def _rest(gap: torch.Tensor, one: int) -> torch.Tensor:
    """That of all other examples, which lie along the first axis."""
    return torch.cat((gap[:one], gap[one + 1 :]))


def _by_statistics(bench: Bench, batch: Batch, one: int) -> bool:
    """Whether it ends when means, deviations and the like over the batch stay what they were."""
    numbers = [n for op in bench.graph.ops if _over_batch(bench, op, batch.size) for n in op.outputs]
    if not numbers:
        return False
    held = bench.play(keep=numbers)
    return not _effect(bench, batch, one, held)


def _over_batch(bench: Bench, op: plain.Op, size: int) -> bool:
    if op.kind in ("batch_norm", "instance_norm"):
        return False  # on running statistics already, or without any: then it stays a leak by statistics
    if op.kind not in REDUCTIONS or not op.inputs or not op.outputs:
        return False
    values = bench.graph.values
    given, made = prod(values[op.inputs[0]].shape), prod(values[op.outputs[0]].shape)
    axes = op.arguments.get("dim", op.arguments.get("axis"))
    rank = len(values[op.inputs[0]].shape)
    listed = [axes] if isinstance(axes, int) else axes if isinstance(axes, list) else None
    first = listed is None or any(isinstance(a, int) and a % max(rank, 1) == 0 for a in listed)
    return first and made * size <= given


def _picks(bench: Bench, batch: Batch) -> Iterator[plain.Op]:
    """Calls that pick examples of the batch by their places."""
    values = bench.graph.values
    for op in bench.graph.ops:
        by_tensor = op.kind in ("getitem", "setitem") and len(op.inputs) > 1
        first = values[op.inputs[0]].shape if op.inputs else ()
        if (op.kind in PICKING or by_tensor) and first[:1] == (batch.size,) and op.inputs[0] not in bench.tape.leaves:
            yield op


# -- where they meet


def _located(bench: Bench, batch: Batch, one: int, numbers: Mapping[str, Any]) -> Probe:
    op = _first_meeting(bench, batch, one)
    if op is None:
        return bench.made(NAME, "leak", numbers, place=batch.pair.op.place)
    shape = bench.graph.values[op.inputs[0]].shape if op.inputs else ()
    sequence = op.kind in RECURRENT + ATTENTION and len(shape) == 3
    along = shape[0] == batch.size if shape else False
    place = replace(op.place, module=op.module or None, op=op.name)
    neighbours = op.kind in CONVOLUTIONS and batch.size in shape[2:] and not along
    more = {
        "positions": shape[1] if len(shape) > 1 else 0,
        "along": along and sequence and shape[1] > 1,
        "neighbours": neighbours,
    }
    return bench.made(NAME, "leak", {**numbers, **more}, subject=op.kind, place=place)


def _first_meeting(bench: Bench, batch: Batch, one: int) -> plain.Op | None:
    """The first call in whose result more than the slice of the changed example changes."""

    def differs(gap: torch.Tensor, same: float) -> bool:
        axes = [i for i, size in enumerate(gap.shape) if size == batch.size]  # features may be as many as examples
        return all(_rest(gap.movedim(i, 0), one).amax() > same for i in axes) and gap.numel() > batch.size

    return bench.first_call(_others(bench, batch, one), lambda shape: batch.size in shape, differs)
