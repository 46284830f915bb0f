"""causality: does what is predicted of a sequence depend on what comes after?"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from whyloss.core.finding import Place
from whyloss.core.probe import Probe
from whyloss.tape.probes.alignment import Shift, related
from whyloss.tape.probes.bench import Bench, NotMade, difference, unchanged

NAME = "causality"


def probe(bench: Bench) -> Iterator[Probe]:
    """`leak`: with other elements in the second half of every sequence, predictions that may only see the first half
    change. Only where the targets are the input's own elements.
    `memory`: the second half depends on the first."""
    shift = related(bench)
    if shift.others:
        msg = "another input holds the targets, too"
        raise NotMade(msg)
    pair, length = shift.pair, shift.leaf.value.shape[shift.axis]
    cut = length // 2
    changed = bench.other(shift.leaf.value, shift.axis, range(cut, length))
    before, after = bench.base, bench.play({shift.leaf.index: changed}, bench.compared)
    target = before[pair.target]
    gap = shift.rows(difference(before[pair.prediction], after[pair.prediction]), target)
    blind = max(cut - max(shift.offset, 1) + 1, 0)  # predictions that may see nothing of the second half
    early, late = gap[:, :blind][shift.counted[:, :blind]], gap[:, blind:][shift.counted[:, blind:]]
    if not early.numel() or not late.numel() or not late.isfinite().all():
        msg = "too few targets count"
        raise NotMade(msg)
    effect = float(early.square().mean().sqrt() / late.square().mean().sqrt().clamp_min(1e-300))
    leaks = float(early.amax()) > unchanged(before[pair.prediction])
    numbers = {
        "offset": shift.offset,
        "effect": effect,
        "length": length,
        "changed": float((early > 0).double().mean()),
    }
    if not shift.offset and not leaks:
        first = bench.play({shift.leaf.index: bench.other(shift.leaf.value, shift.axis, range(cut))}, bench.compared)
        moved = shift.rows(difference(before[pair.prediction], first[pair.prediction]), target)[:, cut:]
        numbers["memory"] = float(moved.amax()) > unchanged(before[pair.prediction])
    place = (_where(bench, shift, changed, blind) if leaks else None) or pair.op.place
    yield bench.made(NAME, "leak" if leaks else "causal", numbers, subject=shift.leaf.name, place=place)


def _where(bench: Bench, shift: Shift, changed: torch.Tensor, blind: int) -> Place | None:
    """The first call in whose result a place changes that may see nothing of what was changed; of those results that
    have one axis as long as the sequence."""
    length = shift.leaf.value.shape[shift.axis]

    def differs(gap: torch.Tensor, same: float) -> bool:
        return float(gap.narrow(gap.shape.index(length), 0, blind).amax()) > same

    op = bench.first_call({shift.leaf.index: changed}, lambda shape: shape.count(length) == 1, differs)
    return replace(op.place, module=op.module or None, op=op.name) if op is not None else None
