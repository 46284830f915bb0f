"""Which gradients an update uses, and where clipping stands, from the order of calls that led to it."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from whyloss.core.run import Call, Run, Trace

Order = tuple[Call, ...]
CLIPS = ("clip_norm", "clip_value")
SAME = 0.02  # of a gradient norm: bfloat16 rounds by less


@dataclass(frozen=True)
class Lost:
    """Gradients of the very line of code that the update uses, computed and cleared before it."""

    gradients: int  # the median over the updates that lost some
    share: float  # of the updates that lost some
    backward: Call
    clear: Call


def by_step_line(run: Run) -> list[tuple[Trace, ...]]:
    """The traces whose updates one line of code makes: an optimizer that is built anew each round leaves many."""
    found: dict[tuple[str, str | None, int | None], list[Trace]] = {}
    for trace in run.traces:
        place = trace.step_place
        found.setdefault((trace.optimizer, place.file, place.line), []).append(trace)
    return [tuple(traces) for traces in found.values()]


def thrown_away(*traces: Trace) -> Lost | None:
    """What was cleared before the updates; None where nothing was, the order was not seen, or the gradients that were
    given are not those of the last backward pass: somebody summed the others up by hand.

    Other optimizers' calls are not in a trace's order. Gradients of another line (an attack, the first pass of a
    sharpness-aware step) were not meant for the update. A closure runs within the step, and is left out.
    """
    lost = np.concatenate([_lost(trace) for trace in traces])
    if not lost.any() or any(abs((divided(trace) or 1.0) - 1) > SAME for trace in traces):
        return None
    order = max((order for trace in traces for order in trace.orders), key=_cleared)
    gradients = float(np.median(lost[lost > 0]))
    passes = [s.values for s in (trace.signal("backwards") for trace in traces) if s is not None]
    if passes and not _accumulates(order):  # a long order is cut short in the journal
        gradients = max(gradients, float(np.median(np.concatenate(passes))) - 1)
    backward = next(c for c in order if c.what == "backward")
    clear = next(c for c in order if c.what == "zero_grad")
    return Lost(int(gradients), float(np.mean(lost > 0)), backward, clear)


def _lost(trace: Trace) -> NDArray[np.int64]:
    """For each update whose order is known, the backward passes whose gradients were cleared unused."""
    index = trace.signal("order")
    counts = [_cleared(order) for order in trace.orders]
    kept = index.finite.values.tolist() if index is not None else []
    return np.array([counts[int(i)] if 0 <= i < len(counts) else 0 for i in kept], dtype=np.int64)


def divided(trace: Trace) -> float | None:
    """Of the gradient's length after the last backward pass, what clipping or the step was given. None: not seen."""
    summed, scale, clipped = trace.signal("grad/summed"), trace.signal("scale"), trace.signal("clip/norm")
    given = clipped or trace.signal("grad/total")
    if summed is None or given is None or (scale is not None and clipped is not None):
        return None
    _, at, where = np.intersect1d(summed.steps, given.steps, return_indices=True)
    by = np.interp(summed.steps[at], scale.steps, scale.values) if scale is not None else 1.0
    with np.errstate(all="ignore"):
        found = by * given.values[where] / summed.values[at]
    found = found[np.isfinite(found)]
    return float(np.median(found)) if len(found) else None


def _before_step(order: tuple[Call, ...]) -> tuple[Call, ...]:
    names = [c.what for c in order]
    return order[: names.index("step")] if "step" in names else order


def _accumulates(order: tuple[Call, ...]) -> bool:
    """Whether two backward passes follow each other without a zero_grad between them."""
    names = [c.what for c in _before_step(order) if c.what in ("zero_grad", "backward")]
    return any(a == b == "backward" for a, b in pairwise(names))


def _cleared(order: tuple[Call, ...]) -> int:
    """Backward calls whose gradients were cleared before the step, of the line whose gradients the step used."""
    before = _before_step(order)
    lines = [(c.file, c.line) for c in before if c.what == "backward"]
    count = since = 0
    for call in before:
        if call.what == "zero_grad":
            count, since = count + since, 0
        elif call.what == "backward":
            since += (call.file, call.line) == lines[-1]
    return count


def share_of_updates(trace: Trace, holds: Callable[[Order], bool], since: int = 0) -> float | None:
    """The share of the updates, from that step on, whose order of calls has a property; None where no order is known.

    In the thinned past of a long run only rows count whose updates all had the same order.
    """
    index = trace.signal("order")
    if index is None or not trace.orders:
        return None
    index = index.since(since).finite
    sure = index.values[index.low == index.high].astype(int)
    sure = sure[(sure >= 0) & (sure < len(trace.orders))]
    return float(np.mean(np.array([holds(order) for order in trace.orders])[sure])) if len(sure) else None


def late_clip(order: Order) -> Call | None:
    """A clipping before the first backward pass, that is after the step before, where none follows a backward pass."""
    names = [c.what for c in order]
    first = names.index("backward") if "backward" in names else 0
    late = [c for c in order[:first] if c.what in CLIPS and "step" not in names[:first]]
    return late[0] if late and not any(name in CLIPS for name in names[first:]) else None


def scaled_clip(order: Order) -> Call | None:
    """A clipping after a backward pass and before any unscaling."""
    names = [c.what for c in order]
    first = names.index("backward") if "backward" in names else len(names)
    end = names.index("unscale") if "unscale" in names else len(names)
    return next((c for c in order[first:end] if c.what in CLIPS), None)


def inner_clip(order: Order) -> Call | None:
    """A clipping between two backward passes of one line whose gradients are added up."""
    last: Call | None = None  # backward pass
    clip: Call | None = None  # since then
    for call in _before_step(order):
        if call.what == "zero_grad":
            last = clip = None
        elif call.what in CLIPS and last is not None:
            clip = call
        elif call.what == "backward":
            if clip is not None and last is not None and (last.file, last.line) == (call.file, call.line):
                return clip
            last, clip = call, None
    return None


def accumulates(order: Order) -> bool:
    """Whether the gradients of several backward passes, all of one line, are added up for the step."""
    before = _before_step(order)
    lines = {(c.file, c.line) for c in before if c.what == "backward"}
    return len(lines) == 1 and _accumulates(order) and _cleared(order) == 0
