"""input-independence: are the predictions the same whatever the model is given?"""

from collections.abc import Iterator

import torch

from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade, Pair, difference, is_mask, unchanged
from whyloss.tape.tape import Leaf, Role

NAME = "input-independence"


def probe(bench: Bench) -> Iterator[Probe]:
    """`ignored`: with inputs exchanged among the examples, zeroed, and replaced, every prediction stays as it is."""
    pairs = [p for p in bench.pairs if _varies(bench.base[p.target])]
    if not pairs:
        msg = "needs a loss function of torch whose targets are data and differ among the examples"
        raise NotMade(msg)
    known = {leaf.index for leaf in bench.inputs} | {pair.leaf.value for pair in bench.pairs}
    if any(_holds_data(leaf) and leaf.index not in known for leaf in bench.tape.leaves.values()):
        msg = "data reach the loss that are neither arguments of the model nor targets"
        raise NotMade(msg)
    if not bench.inputs:
        if not bench.given:
            msg = "no data are given to the model"
            raise NotMade(msg)
        yield bench.made(NAME, "ignored", {"inputs": 0, "given": bench.given, "change": 0.0}, place=pairs[0].op.place)
        return
    exchanged = {leaf.index: leaf.value.roll(1, 0) for leaf in bench.inputs}
    if all(torch.equal(leaf.value, exchanged[leaf.index]) for leaf in bench.inputs):
        msg = "all examples of the batch are the same"
        raise NotMade(msg)
    zeroed = {leaf.index: torch.zeros_like(leaf.value) for leaf in bench.inputs}
    replaced = {leaf.index: bench.other(leaf.value, 0, range(len(leaf.value))) for leaf in bench.inputs}
    changes = []
    for leaves in (exchanged, replaced, zeroed):
        changes.append(_change(bench, pairs, leaves))
        if changes[-1]:
            break
    names = ", ".join(leaf.name for leaf in bench.inputs)
    place = bench.place_of(bench.inputs[0])
    outcome = "used" if any(changes) else "ignored"
    yield bench.made(NAME, outcome, {"inputs": len(bench.inputs), "change": max(changes)}, subject=names, place=place)


def _holds_data(leaf: Leaf) -> bool:
    there = leaf.role not in (Role.PARAMETER, Role.BUFFER) and leaf.value.ndim > 0
    return there and len(leaf.value) > 1 and not is_mask(leaf.value)


def _varies(target: torch.Tensor) -> bool:
    return target.ndim > 0 and len(target) > 1 and not bool((target == target[:1]).all())


def _change(bench: Bench, pairs: list[Pair], leaves: dict[int, torch.Tensor]) -> float:
    """The largest change of a prediction that is more than rounding; 0 where there is none."""
    played, largest = bench.play(leaves, bench.compared), 0.0
    for pair in pairs:
        before = bench.base[pair.prediction]
        gap = float(difference(before, played[pair.prediction]).amax())
        largest = max(largest, gap if gap > unchanged(before) else 0.0)
    return largest
