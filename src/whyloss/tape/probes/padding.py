"""padding-invariance: do predictions depend on how much padding there is?"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from whyloss.core.compared import Pair
from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade, difference, unchanged
from whyloss.tape.tape import Leaf, Role

NAME = "padding-invariance"
MORE = 3  # positions of padding that are added
ROWS = 0.25  # of the sequences end in padding, at least
SHORTEST = 4  # positions
READ = 0.02  # of the spread of predictions, that other values at padding move them
FORGOTTEN = 1e-3  # of that, what the sequence's own end moves them


@dataclass(frozen=True)
class Padded:
    """An input whose sequences end in a value that stands nowhere else. `padding`: [sequences, positions]."""

    leaf: Leaf
    padding: torch.Tensor
    value: float

    @property
    def ends(self) -> torch.Tensor:
        """[sequences, positions]: the last element before the padding, of those that have some."""
        return self.padding.roll(-1, 1) & ~self.padding & self.padding[:, -1:]


def probe(bench: Bench) -> Iterator[Probe]:
    """`forgotten`: what is predicted depends on what stands at padding, and no longer on the last element before it;
    `nothing-else`: on no element. `leak`: with more padding behind every sequence, what is predicted of it changes.
    Only where there is one prediction a sequence, and lengths and masks are inputs or made of them."""
    pair = bench.one_pair()
    padded = next((p for leaf in bench.inputs if (p := _padded(leaf)) is not None), None)
    if padded is None:
        msg = "no input has sequences that end in padding"
        raise NotMade(msg)
    before = bench.base[pair.prediction]
    if len(before) != len(padded.leaf.value) or bench.base[pair.target].shape[:1] != before.shape[:1]:
        msg = "there is not one prediction a sequence"
        raise NotMade(msg)
    numbers = {
        "padded": float(padded.padding.double().mean()),
        "positions": padded.padding.shape[1],
        "value": padded.value,
    }
    spread = max(float(before.double().std(0).mean()), 1e-300)
    within, real = (_with_others(bench, pair, padded, there) for there in (padded.padding, padded.ends))
    if within > READ * spread and real < FORGOTTEN * within:
        rest = _with_others(bench, pair, padded, ~padded.padding)
        outcome = "forgotten" if rest > FORGOTTEN * within else "nothing-else"
        scale = max(within, spread)  # predictions that are all the same have no spread
        numbers |= {"within": within / scale, "real": real / scale}
    else:
        gap = difference(before, _with_more(bench, pair, padded))
        outcome = "leak" if float(gap.amax()) > unchanged(before) else "independent"
        numbers["effect"] = float(gap.mean()) / spread
    yield bench.made(NAME, outcome, numbers, subject=padded.leaf.name, place=bench.place_of(padded.leaf))


def _padded(leaf: Leaf) -> Padded | None:
    value = leaf.value
    if value.ndim == 2 and not value.is_floating_point():
        return _trailing(leaf, value == value[:, -1].mode().values, float(value[:, -1].mode().values))
    if value.ndim in (2, 3) and value.is_floating_point():
        return _trailing(leaf, value.reshape(*value.shape[:2], -1).eq(0).all(-1), 0.0)
    return None


def _trailing(leaf: Leaf, there: torch.Tensor, value: float) -> Padded | None:
    """Only where it stands at the ends alone, and the sequences are of different lengths."""
    ends = there.long().flip(1).cumprod(1).flip(1).bool()
    lengths = (~ends).sum(1)
    several = len(set(lengths.tolist())) > 2 and int(lengths.min()) > 0
    if there.shape[1] < SHORTEST or not several or not torch.equal(ends, there):
        return None
    return Padded(leaf, ends, value) if float(ends.any(1).double().mean()) >= ROWS else None


def _with_more(bench: Bench, pair: Pair, padded: Padded) -> torch.Tensor:
    leaves = {}
    for leaf in bench.tape.of(Role.INPUT):
        if leaf.value.ndim > 1 and leaf.value.shape[:2] == padded.padding.shape:
            leaves[leaf.index] = torch.cat((leaf.value, *(_at_padding(leaf, padded),) * MORE), 1)
    try:
        after = bench.play(leaves, bench.compared)[pair.prediction]
    except (RuntimeError, IndexError, ValueError, AssertionError) as error:
        msg = "the step runs on sequences of this one length only"
        raise NotMade(msg) from error
    if after.shape != bench.base[pair.prediction].shape:
        msg = "with more padding the predictions have another shape"
        raise NotMade(msg)
    return after


def _with_others(bench: Bench, pair: Pair, padded: Padded, there: torch.Tensor) -> float:
    """The mean change of what is predicted with other values at these positions, as they stand elsewhere."""
    changed = padded.leaf.value.clone()
    others = padded.leaf.value[~padded.padding]
    picks = torch.randint(0, len(others), (int(there.sum()),), generator=bench.generator).to(others.device)
    changed[there] = others[picks]
    after = bench.play({padded.leaf.index: changed}, bench.compared)[pair.prediction]
    return float(difference(bench.base[pair.prediction], after).mean())


def _at_padding(leaf: Leaf, padded: Padded) -> torch.Tensor:
    """One position more of an input that runs along with the padded one: what it has at padding."""
    row = int(padded.padding[:, -1].long().argmax())
    last = leaf.value[row, -1:]
    return last.expand(len(leaf.value), 1, *last.shape[1:])
