"""causality: does what is predicted of a sequence depend on what comes after?"""

from collections.abc import Iterator

from whyloss.core.probe import Probe
from whyloss.tape.probes.alignment import related
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
    yield bench.made(NAME, "leak" if leaks else "causal", numbers, subject=shift.leaf.name, place=pair.op.place)
