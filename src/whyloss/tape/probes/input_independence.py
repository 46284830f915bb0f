"""input-independence: are the predictions the same whatever the model is given?"""

from collections.abc import Callable, Iterator, Sequence

import torch

from whyloss.core.compared import Pair
from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade, difference, is_mask, unchanged
from whyloss.tape.tape import Leaf, Role

NAME = "input-independence"
MOST_APART = 3  # inputs that are looked at one by one


def probe(bench: Bench) -> Iterator[Probe]:
    """`ignored`: with inputs exchanged among the examples, zeroed, and replaced, every prediction stays as it is.
    `partly`: that is so of some inputs of real numbers, while others count."""
    pairs = [p for p in bench.pairs if _varies(bench.base[p.target])]
    if not pairs:
        msg = "needs a loss function of torch whose targets are data and differ among the examples"
        raise NotMade(msg)
    if not all(t.isfinite().all() for t in (bench.base[p.prediction] for p in pairs)):
        msg = "the predictions are not finite"
        raise NotMade(msg)
    known = {leaf.index for leaf in bench.inputs} | {pair.leaf.value for pair in bench.pairs}
    if any(_holds_data(leaf) and leaf.index not in known for leaf in bench.tape.leaves.values()):
        msg = "data reach the loss that are neither arguments of the model nor targets"
        raise NotMade(msg)
    if not bench.inputs:
        if not bench.given:
            msg = "no data are given to the model"
            raise NotMade(msg)
        _stays_in_torch(bench)
        yield bench.made(NAME, "ignored", {"inputs": 0, "given": bench.given, "change": 0.0}, place=pairs[0].op.place)
        return
    if all(torch.equal(leaf.value, leaf.value.roll(1, 0)) for leaf in bench.inputs):
        msg = "all examples of the batch are the same"
        raise NotMade(msg)
    change = _change_with_others(bench, pairs, bench.inputs)
    real = [leaf for leaf in bench.inputs if leaf.value.is_floating_point()] if change and len(bench.inputs) > 1 else []
    apart = [leaf for leaf in real[:MOST_APART] if not _change_with_others(bench, pairs, (leaf,))]
    outcome = "partly" if apart else "used" if change else "ignored"
    if outcome != "used":
        _stays_in_torch(bench)
    named = apart or bench.inputs
    names, place = ", ".join(leaf.name for leaf in named), bench.place_of(named[0])
    yield bench.made(NAME, outcome, {"inputs": len(bench.inputs), "change": change}, subject=names, place=place)


def _stays_in_torch(bench: Bench) -> None:
    if bench.leaves_torch:
        msg = "values leave torch in the step, and may come back"
        raise NotMade(msg)


def _holds_data(leaf: Leaf) -> bool:
    there = leaf.role not in (Role.PARAMETER, Role.BUFFER) and leaf.value.ndim > 0
    return there and len(leaf.value) > 1 and not is_mask(leaf.value)


def _varies(target: torch.Tensor) -> bool:
    return target.ndim > 0 and len(target) > 1 and not bool((target == target[:1]).all())


def _change_with_others(bench: Bench, pairs: list[Pair], inputs: Sequence[Leaf]) -> float:
    """Exchanged among the examples, replaced, zeroed: the first change of a prediction; 0 where there is none."""
    ways: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda value: value.roll(1, 0),
        lambda value: bench.other(value, 0, range(len(value))),
        torch.zeros_like,
    )
    changes = (_change(bench, pairs, {leaf.index: way(leaf.value) for leaf in inputs}) for way in ways)
    return next(filter(None, changes), 0.0)


def _change(bench: Bench, pairs: list[Pair], leaves: dict[int, torch.Tensor]) -> float:
    """The largest change of a prediction that is more than rounding; 0 where there is none."""
    played, largest = bench.play(leaves, bench.compared), 0.0
    for pair in pairs:
        before = bench.base[pair.prediction]
        gap = float(difference(before, played[pair.prediction]).amax())
        largest = max(largest, gap if gap > unchanged(before) else 0.0)
    return largest
