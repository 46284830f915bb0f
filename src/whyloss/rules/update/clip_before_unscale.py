"""clip-before-unscale."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from whyloss.core.clipping import Clipping, clipping
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.order import scaled_clip, share_of_updates
from whyloss.core.run import Call, Trace
from whyloss.core.sample import ORDER, flat, sample_run
from whyloss.core.series import Floats, Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class _Scaled:
    """Clipping of gradients that were still multiplied by the scale of the loss."""

    clip: Clipping
    scale: float
    call: Call = field(default_factory=lambda: Call("clip"))
    by_hand: bool = False


@dataclass(frozen=True)
class ClipBeforeUnscale(Rule):
    """Gradients are clipped while they are still multiplied by the scale of the loss.

    ## What it detects
    With a loss scaler: clipping after backward and before `unscale_`, or before `step` where nothing unscales earlier,
    that takes something away at most updates. Scaled by hand: what the optimizer is given is the limit divided by the
    factor by which the loss was multiplied.
    ## Why it matters
    The limit is held against a norm that is too large by the scale, 65536 at first: updates shrink to limit/scale.
    Adam partly hides it, until its eps is as large as what is left.
    ## What else looks like this
    `max_norm=inf`, a measurement; a limit that was multiplied by the scale; clipping that never takes anything away.
    None is reported.
    ## What to do
    Call `scaler.unscale_(optimizer)` after the last backward pass and before clipping.
    """

    name = "clip-before-unscale"
    boundary = Boundary.UPDATE
    explains = (
        *("clip-too-small", "lr-too-low", "vanishing-gradient", "update-not-landing", "update-lost-to-precision"),
        *("weight-decay-dominates", "loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged"),
    )
    change = "Call scaler.unscale_(optimizer) after backward() and before the clipping."
    verify = "Run again: clip/norm is near grad/total, and the limit bites on few updates."

    updates: int = threshold(3, unit="updates", why="three in a row show the order of the loop")
    share: float = threshold(
        0.9, unit="of the updates", why="the order is the loop's own; the first update may be another"
    )
    bitten: float = threshold(0.5, unit="of the updates", why="a limit that seldom takes something changes little")
    meant: float = threshold(
        0.01, unit="of the scale", why="limits are 0.1 to 10; one in the hundreds and more was multiplied by the scale"
    )
    same: float = threshold(
        0.01, unit="of the limit", why="float32 norms and a bfloat16 gradient agree with exact arithmetic within it"
    )
    least: float = threshold(16.0, unit="times", why="smaller factors weigh terms of a loss, or stand for a batch size")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        clip = clipping(trace)
        if clip is None or not clip.finite:
            yield self.skipped("no clipping with a finite limit was seen")
            return
        found = self._by_scaler(trace) or self._by_hand(trace, clip)
        if found is None:
            yield self.passed("gradients are clipped at their own scale")
            return
        limit = float(np.median(found.clip.limits))
        if limit >= self.meant * found.scale or found.clip.bitten < self.bitten or len(clip.limits) < self.updates:
            yield self.passed(
                f"clipped at a scale of {found.scale:.4g}; the limit allows for it, or takes nothing away"
            )
            return
        yield self._found(trace, found)

    def _by_scaler(self, trace: Trace) -> _Scaled | None:
        scale = trace.signal("scale")
        share = share_of_updates(trace, lambda order: scaled_clip(order) is not None)
        if scale is None or share is None or share < self.share:
            return None
        typical = float(np.median(scale.values))
        clip = clipping(trace, _times(trace.signal("grad/total"), typical) if _by_value(trace) else None)
        call = next(c for order in trace.orders if (c := scaled_clip(order)) is not None)
        return None if clip is None or not typical > 1.0 else _Scaled(clip, typical, call)

    def _by_hand(self, trace: Trace, clip: Clipping) -> _Scaled | None:
        """The loss is a constant times the loss function's own value, and the gradient the limit over that constant."""
        loss, value, total = trace.loss, trace.signal("objective/value"), trace.signal("grad/total")
        if clip.by_value or loss is None or value is None or total is None or trace.signal("scale") is not None:
            return None
        _, at, where = np.intersect1d(loss.steps, value.steps, return_indices=True)
        factors = loss.values[at] / np.where(value.values[where] == 0.0, np.nan, value.values[where])
        factor = float(np.median(factors)) if len(factors) >= self.updates else np.nan
        if not factor >= self.least or not _near(factors, factor, self.same):
            return None
        expected = np.minimum(clip.limits, clip.norms) / factor
        _, rows, _ = np.intersect1d(total.steps, trace.every.steps[: len(expected)], return_indices=True)
        given = total.values[rows][: len(expected)]
        ratios = given / np.where(expected[: len(given)] == 0.0, np.nan, expected[: len(given)])
        calls = [c for order in trace.orders for c in order if c.what == "clip_norm"]
        matches = bool(calls) and _near(ratios, 1.0, self.same)
        return _Scaled(clip, factor, calls[0], by_hand=True) if matches else None

    def _found(self, trace: Trace, found: _Scaled) -> Outcome:
        clip, scale = found.clip, found.scale
        limit, norm = float(np.median(clip.limits)), float(np.median(clip.norms[np.isfinite(clip.norms)]))
        what = "values" if clip.by_value else "the norm"
        limit = limit if not clip.by_value else _last(trace.signal("clip/value"))
        before = "are divided by it again" if found.by_hand else "are unscaled"
        own = "" if clip.by_value else f": {norm:.4g} instead of {norm / scale:.4g}"
        return self.finding(
            f"{what} of the gradients are clipped to {limit:.3g} while the gradients are {scale:.6g} times too large"
            f"{own}. They {before} only afterwards, which leaves a limit of {limit / scale:.2g}",
            Evidence("scale of the loss", scale, 1.0, "times", (0, trace.updates - 1)),
            Evidence("limit that it leaves", limit / scale, limit),
            Evidence("share of updates that are clipped", clip.bitten, self.bitten),
            Evidence("order of calls", " → ".join(c.what for c in trace.orders[-1]) if trace.orders else "not seen"),
            severity=Severity.WARNING if learned_from_input(trace) else Severity.ERROR,
            place=found.call.place,
            certain=True,
            change="Divide the gradients by the factor before they are clipped." if found.by_hand else self.change,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        clip, unscale = Call("clip_norm", "train.py", 22), Call("unscale", "train.py", 23)
        early, late = (*ORDER[:2], clip, unscale, ORDER[2]), (*ORDER[:2], unscale, clip, ORDER[2])
        value = (*ORDER[:2], Call("clip_value", "train.py", 22), ORDER[2])
        scaled: dict[str, Any] = {
            "scale": 65536.0,
            "clip/limit": 1.0,
            "clip/norm": 26000.0,
            "grad/total": 1 / 65536,
        }
        by_value = {"scale": 65536.0, "clip/value": 0.5, "grad/total": 5e-4}
        hand = {"clip/limit": 1.0, "clip/norm": 26000.0, "grad/total": 1 / 1024, "objective/value": 2.3}
        loss: dict[str, Any] = {"loss": np.full(60, 2.3 * 1024), "order": (*ORDER[:2], clip, ORDER[2])}
        still: dict[str, Any] = {"loss": flat(60)}
        return (
            fires("clipped, then unscaled", sample_run(order=early, signals=scaled, **still), Severity.ERROR),
            fires("step() unscales", sample_run(order=(*ORDER[:2], clip, ORDER[2]), signals=scaled, **still)),
            fires("it learns all the same", sample_run(order=early, signals=scaled), Severity.WARNING),
            fires("values clipped to 0.5", sample_run(order=value, signals=by_value, **still), Severity.ERROR),
            fires("the loss times 1024, by hand", sample_run(signals=hand, **loss), Severity.ERROR),
            silent("near miss: unscaled, then clipped", sample_run(order=late, signals=scaled, **still)),
            silent("near miss: no scaler", sample_run(order=early, signals=scaled | {"scale": 1.0}, **still)),
            silent(
                "near miss: a measurement", sample_run(order=early, signals=scaled | {"clip/limit": np.inf}, **still)
            ),
            silent(
                "near miss: the limit times the scale",
                sample_run(order=early, signals=scaled | {"clip/limit": 65536.0, "clip/norm": 9e4}, **still),
            ),
            silent(
                "near miss: the limit takes nothing",
                sample_run(order=early, signals=scaled | {"clip/norm": 0.5}, **still),
            ),
            silent(
                "near miss: by hand, and divided first",
                sample_run(signals=hand | {"clip/norm": 25.0, "grad/total": 1.0}, **loss),
            ),
        )


def _by_value(trace: Trace) -> bool:
    return trace.signal("clip/limit") is None


def _times(series: Series | None, factor: float) -> Series | None:
    return None if series is None else Series.of(series.values * factor, series.steps)


def _near(values: Floats, to: float, tolerance: float) -> bool:
    finite = values[np.isfinite(values)]
    return len(finite) > 0 and bool(np.mean(np.abs(finite - to) <= tolerance * abs(to)) >= 0.9)


def _last(series: Series | None) -> float:
    return series.last if series is not None else float("nan")
