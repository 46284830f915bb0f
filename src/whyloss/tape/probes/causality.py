"""causality: does what is predicted of a sequence depend on what comes after?"""

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import torch

from whyloss.core.finding import Place
from whyloss.core.probe import Probe
from whyloss.tape.probes.alignment import Shift, related
from whyloss.tape.probes.bench import MOST_BYTES, Bench, NotMade, difference, unchanged

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
    values, length = bench.graph.values, shift.leaf.value.shape[shift.axis]
    looked = {
        n: op
        for op in reversed(bench.graph.ops)
        for n in op.outputs
        if values[n].floating and values[n].shape.count(length) == 1
    }
    if sum(prod(values[n].shape) * 8 for n in looked) > MOST_BYTES:
        return None
    before, after = bench.play(keep=looked), bench.play({shift.leaf.index: changed}, looked)
    for n, op in reversed(looked.items()):
        early = difference(before[n], after[n]).narrow(values[n].shape.index(length), 0, blind)
        if float(early.amax()) > unchanged(before[n]):
            return replace(op.place, module=op.module or None, op=op.name)
    return None
