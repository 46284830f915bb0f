"""Layers that a ReLU stands behind, and those of them that output nothing."""

from dataclasses import dataclass

import numpy as np

from whyloss.core.run import Mask, Module, Tensor, Trace
from whyloss.core.series import Series, Steps

RELU = ("ReLU", "ReLU6")
LAYERS = ("Linear", "Conv")  # kinds of module, by how they begin
NORMS = ("BatchNorm", "GroupNorm", "LayerNorm", "InstanceNorm", "RMSNorm")
BETWEEN = ("Dropout", "MaxPool", "AvgPool", "Adaptive", "Flatten", "Identity")  # these leave the sign as it is
LOOKS = 3  # observed steps, at the least, of a layer without output


@dataclass(frozen=True)
class Gate:
    """A module whose positive part is all that passes: a ReLU, or a layer that a functional ReLU may follow."""

    module: Module
    owner: str  # path of the module whose weight and bias decide what arrives at the ReLU
    tensors: tuple[Tensor, ...]  # of the owner, trained

    @property
    def name(self) -> str:
        return self.owner or self.module.path


@dataclass(frozen=True)
class Dead:
    """No unit of the gate was above 0, from update `since` to the end."""

    gate: Gate
    since: int


def gates(trace: Trace) -> tuple[Gate, ...]:
    """In forward order. A layer counts where the next one is a layer again, so that what is between is no module, and
    where it goes below 0 at all: an output of 0 throughout shows no ReLU."""
    ran = sorted((m for m in trace.modules if m.order is not None and m.slots), key=lambda m: m.order or 0)
    owned = {t.module for t in trace.tensors}
    out, owner = [], ""
    for i, m in enumerate(ran):
        owner = m.path if m.path in owned else owner
        after = next((n.kind for n in ran[i + 1 :] if not n.kind.startswith(BETWEEN)), "")
        functional = m.kind.startswith(LAYERS + NORMS) and after.startswith(LAYERS)
        low = trace.signal(f"activation/low[{m.slots[0]}]") if functional else None
        if m.kind in RELU or (low is not None and np.any(low.low < 0)):
            out.append(Gate(m, owner, tuple(t for t in trace.trained if t.module == owner)))
    return tuple(out)


def share(trace: Trace, gate: Gate, window: float) -> float | None:
    """The share of units that were never above 0; None where not all examples of a full window were looked at. In front
    of a functional ReLU, units count whose gradient was 0 too: only a ReLU makes it exactly 0."""
    slot = gate.module.slots[0]
    dead, seen, exact = (trace.signal(f"activation/{part}[{slot}]") for part in ("dead", "window", "exact"))
    if dead is None or seen is None or exact is None or exact.last != 1 or not seen.last >= window:
        return None
    if gate.module.kind in RELU:
        return dead.last
    rows = trace.signal(f"gradient/dead_rows[{gate.module.path}.weight]")
    return None if rows is None else min(dead.last, rows.last)


def dead(trace: Trace, gate: Gate, updates: float) -> Dead | None:
    """Shown by samples of the output at each observed step, and a gradient of exactly 0 for `updates` updates."""
    high = trace.signal(f"activation/high[{gate.module.slots[0]}]")
    gradients = [g for t in gate.tensors if (g := trace.signal(f"grad/norm[{t.name}]")) is not None]
    if high is None or not gradients:
        return None
    quiet = _tail(high, high.high <= 0)
    still = [_tail(g, g.high == 0) for g in gradients]
    if len(quiet) < LOOKS or not all(len(s) for s in still):
        return None
    zero, silent = max(int(s[0]) for s in still), int(quiet[0])
    last_output = max((int(s) for s in high.steps if s < silent), default=-1)
    since = zero if zero > last_output else silent
    return Dead(gate, since) if trace.updates - max(zero, since) >= updates else None


def fed_around(trace: Trace, gate: Gate) -> bool | None:
    """Whether weights in front of the gate get a gradient at the end, by a way round it. None: there are none."""
    depth = max((trace.depth(t) for t in gate.tensors), default=-1)
    before = [t for t in trace.trained if len(t.shape) > 1 and 0 <= trace.depth(t) < depth]
    ends = [g.high[-1] for t in before if (g := trace.signal(f"grad/norm[{t.name}]")) is not None]
    return bool(np.any(np.array(ends) > 0)) if ends else None


def _tail(series: Series, holds: Mask) -> Steps:
    """The steps at the end through which it holds."""
    broken = np.flatnonzero(~holds)
    return series.steps[broken[-1] + 1 :] if len(broken) else series.steps
