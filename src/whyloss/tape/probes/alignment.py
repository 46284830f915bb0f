"""Which element of an input each target is: the same sequence, shifted by some places."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from whyloss.core.compared import Pair
from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade
from whyloss.tape.tape import Leaf, Role

NAME = "target-offset"
OFFSETS = range(-3, 4)
COUNTED = 24  # targets that have to agree
DISTINCT = 4  # values among them


@dataclass(frozen=True)
class Shift:
    """Target i of a sequence is element i + `offset` of the input `leaf` along `axis`, at every place that counts."""

    pair: Pair
    leaf: Leaf
    axis: int
    offset: int
    counted: torch.Tensor  # [sequences, targets]
    sequences: int
    others: int  # inputs that hold the targets, too

    def rows(self, prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """[sequences, targets, …] of a prediction."""
        if prediction.ndim == target.ndim + 1 and prediction.shape[0] == target.shape[0] and target.ndim > 1:
            prediction = prediction.movedim(1, -1)
        if self.axis == 0 and self.leaf.value.ndim > 1:
            return prediction.reshape(-1, self.sequences, *_rest(prediction, target)).transpose(0, 1)
        return prediction.reshape(self.sequences, -1, *_rest(prediction, target))


def _rest(prediction: torch.Tensor, target: torch.Tensor) -> tuple[int, ...]:
    return (max(prediction.numel() // max(target.numel(), 1), 1),)


def probe(bench: Bench) -> Iterator[Probe]:
    """`shifted`: the targets of a sequence are its own elements, some places on (0: the same ones)."""
    pair = bench.one_pair()
    found = shift_of(bench, pair)
    if found is None:
        yield bench.made(NAME, "unrelated", {}, place=pair.op.place)
        return
    counted = float(found.counted.double().sum())
    numbers = {"offset": found.offset, "counted": counted, "others": found.others, "axis": found.axis}
    yield bench.made(NAME, "shifted", numbers, subject=found.leaf.name, place=pair.op.place)


def shift_of(bench: Bench, pair: Pair) -> Shift | None:
    target = bench.base[pair.target]
    ignored = int(pair.op.arguments.get("ignore_index", -100))
    found = [s for leaf in bench.tape.of(Role.INPUT) if (s := _shift(pair, leaf, target, ignored)) is not None]
    if not found:
        return None
    first = found[0]
    return Shift(pair, first.leaf, first.axis, first.offset, first.counted, first.sequences, len(found) - 1)


def _shift(pair: Pair, leaf: Leaf, target: torch.Tensor, ignored: int) -> Shift | None:
    given = _symbols(leaf.value, target)
    if given is None or given.ndim not in (1, 2):
        return None
    for axis in (given.ndim - 1, 0) if given.ndim == 2 else (0,):
        source = given if axis == given.ndim - 1 else given.T
        source = source.reshape(-1, source.shape[-1])
        rows = _targets(target, len(source), source.shape[1], first=axis == 0 and given.ndim == 2)
        if rows is None:
            continue
        counted = torch.ones_like(rows, dtype=torch.bool) if rows.is_floating_point() else rows.ne(ignored)
        matching = [d for d in OFFSETS if _matches(rows, source, counted, d)]
        if len(matching) == 1:
            return Shift(pair, leaf, axis, matching[0], counted, len(source), 0)
    return None


def _symbols(value: torch.Tensor, target: torch.Tensor) -> torch.Tensor | None:
    """The input as what the targets are: whole numbers, read from one-hot rows where need be; or real numbers."""
    if target.is_floating_point():
        if not value.is_floating_point():
            return None
        return value.squeeze(-1) if value.ndim == 3 and value.shape[-1] == 1 else value
    if not value.is_floating_point():
        return value
    if value.ndim < 2:
        return None
    one_hot = bool(((value == 0) | (value == 1)).all()) and bool((value.sum(-1) == 1).all())
    return value.argmax(-1) if one_hot else None


def _targets(target: torch.Tensor, sequences: int, length: int, *, first: bool) -> torch.Tensor | None:
    """[sequences, targets]; `first`: time is the first axis."""
    if not target.numel() or target.numel() % sequences:
        return None
    each = target.numel() // sequences
    if not length - max(OFFSETS) <= each <= length:
        return None
    return target.reshape(each, sequences).T if first else target.reshape(sequences, each)


def _matches(rows: torch.Tensor, source: torch.Tensor, counted: torch.Tensor, offset: int) -> bool:
    """Whether every target that counts is the input's element `offset` places on, as far as the input reaches."""
    low, high = max(0, -offset), min(rows.shape[1], source.shape[1] - offset)
    ours, theirs, there = rows[:, low:high], source[:, low + offset : high + offset], counted[:, low:high]
    picked = ours[there]
    return len(picked) >= COUNTED and len(torch.unique(picked)) >= DISTINCT and torch.equal(picked, theirs[there])


def related(bench: Bench) -> Shift:
    """NotMade where no input holds the targets."""
    found = shift_of(bench, bench.one_pair())
    if found is None:
        msg = "the targets are no elements of an input"
        raise NotMade(msg)
    return found
