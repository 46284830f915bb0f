"""clip-too-small."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.run import Trace
from whyloss.core.sample import flat, sample_run
from whyloss.core.series import Floats
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ClipTooSmall(Rule):
    """Gradient clipping leaves so little of each gradient that the weights stand still.

    ## What it detects
    Nearly every update is clipped and loses a factor of ten or more by it, what is left of all updates together moves
    the weights by a few hundredths of their norm at the most, and the loss is no better than a constant prediction's.
    For optimizers that divide by the gradient's own size (Adam and its kin) the factor counts only where what is left
    is small against their eps.
    ## Why it matters
    The rate in front of the optimizer no longer means anything: the limit of the clipping decides how far a step goes.
    ## What else looks like this
    `max_norm=inf`, a measurement; clipping that bites on some steps, or by a small factor on all; a tiny limit under
    Adam, which cancels it; a rate so low that the updates are tiny without the clipping too. None is reported.
    ## What to do
    Print what `clip_grad_norm_` returns: the norm before clipping. A limit near its median holds back outliers only.
    """

    name = "clip-too-small"
    boundary = Boundary.UPDATE
    explains = ("lr-too-low", "loss-flat", "loss-at-baseline", "underfitting", "update-not-landing")
    change = "Raise the clipping limit to about the median of the gradient norm, or remove the clipping."
    verify = (
        "Run again: clip/norm exceeds clip/limit on few updates, and update/norm is near 1e-3 of the weight's norm."
    )

    updates: int = threshold(
        10, unit="updates", why="outliers of the first steps, which clipping is for, are over by then"
    )
    clipped: float = threshold(
        0.95, unit="of the updates", why="clipping against outliers bites now and then: 15 to 60 %"
    )
    factor: float = threshold(
        0.1, unit="times", why="rates are searched in steps of 3 to 10: one such step lost at least"
    )
    way: float = threshold(
        0.05, unit="of the norm", why="over the run; fresh networks that learned moved by 0.09 and more"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        kept = self._kept(trace)
        kept = None if kept is None else kept[np.isfinite(kept)]
        if kept is None:
            yield self.skipped("no clipping with a finite limit was seen")
            return
        way = _way(trace)
        if way is None or len(kept) < self.updates:
            yield self.skipped(f"needs the gradient and weight norms of {self.updates} clipped updates")
            return
        left, bitten = float(np.median(kept)), float(np.mean(kept < 1))
        if bitten < self.clipped or left > self.factor or way > self.way or learned_from_input(trace):
            yield self.passed(f"{bitten:.0%} of the updates are clipped; the median one keeps {left:.3g} of its size")
            return
        limit = trace.signal("clip/limit") or trace.signal("clip/value")
        assert limit is not None
        yield self.finding(
            f"clipping to {limit.last:.3g} leaves the median update {left:.2g} of its size: {trace.updates} updates "
            f"could move the weights by {100 * way:.2g} % of their norm, and nothing was learned from the inputs",
            Evidence(
                "share of its size that clipping leaves of an update", left, self.factor, "", (0, trace.updates - 1)
            ),
            Evidence("share of updates that are clipped", bitten, self.clipped),
            Evidence("median ‖Δθ‖/‖θ‖ times the updates", way, self.way),
            severity=Severity.WARNING,
            place=_clip_place(trace),
        )

    def _kept(self, trace: Trace) -> Floats | None:
        """What clipping leaves of the size of each update, 1 being all; None where nothing was clipped."""
        size = sum(t.size for t in trace.trained)
        if (limit := trace.signal("clip/limit")) is not None and (norm := trace.signal("clip/norm")) is not None:
            if len(limit) != len(norm) or not np.isfinite(limit.values).all():
                return None
            after = np.minimum(limit.values, norm.values)
            return _scaled(trace, after / np.sqrt(size), norm.values / np.sqrt(size))[norm.values > 0]
        value, total = trace.signal("clip/value"), trace.signal("grad/total")
        if value is None or total is None or len(value) != len(total) or not np.isfinite(value.values).all():
            return None
        # What it took is not seen. Where most elements are at the limit, a gradient of a hundredth of the weights is
        # assumed, so that a limit below 1e-4 of the weights counts: even at rate 1 the update would be tiny.
        full = total.values / np.maximum(value.values * np.sqrt(size), 1e-300)  # 1: every element is at the limit
        typical = np.sqrt(max(sum((t.std or 0.0) ** 2 * t.size for t in trace.trained) / max(size, 1), 1e-300))
        before = np.where(full > 0.5, np.maximum(value.values, typical * self.factor), value.values)
        return _scaled(trace, value.values, before)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        tiny = {f"update/norm[{n}.{p}]": 1e-9 for n in ("fc1", "fc2", "head") for p in ("weight", "bias")}
        norm, value = {"clip/limit": 1e-6, "clip/norm": 0.3}, {"clip/value": 1e-8, "grad/total": 6e-7}
        sgd: dict[str, Any] = {"loss": flat(200), "optimizer": "SGD"}
        adam: dict[str, Any] = {"loss": flat(200), "settings": {"eps": 1e-8}}
        below_eps, slow = norm | tiny | {"clip/limit": 1e-12}, norm | tiny | {"clip/limit": 1e-3}
        some = {"clip/limit": 1.0, "clip/norm": np.where(np.arange(200) % 100 < 31, 1.3, 0.7)}
        return (
            fires("norm clipped to 1e-6 under SGD", sample_run(signals=norm | tiny, **sgd), Severity.WARNING),
            fires("values clipped to 1e-8 under SGD", sample_run(signals=value | tiny, **sgd), Severity.WARNING),
            fires("norm so small that Adam's eps rules", sample_run(signals=below_eps, **adam), Severity.WARNING),
            silent("near miss: the same run without any clipping", sample_run(signals=tiny, **sgd)),
            silent(
                "near miss: limit inf, a measurement", sample_run(signals=tiny | norm | {"clip/limit": np.inf}, **sgd)
            ),
            silent("near miss: 31 % mildly bitten", sample_run(signals=some)),
            silent(
                "near miss: all bitten, by 0.4", sample_run(signals=tiny | {"clip/limit": 1, "clip/norm": 2.5}, **sgd)
            ),
            silent("near miss: limit 1e-6 under Adam, updates of usual size", sample_run(signals=norm, **adam)),
            silent("near miss: tiny rate under Adam, limit 1e-3", sample_run(signals=slow, **adam)),
            silent(
                "near miss: tiny updates, values below the limit", sample_run(signals=tiny | {"clip/value": 1}, **sgd)
            ),
        )


def _scaled(trace: Trace, after: Floats, before: Floats) -> Floats:
    """The change of an update when the gradient's typical element goes from `before` to `after`."""
    eps = trace.settings.get("eps")
    if isinstance(eps, float) and eps > 0:
        after, before = after / (after + eps), before / (before + eps)
    elif "SGD" not in trace.optimizer and "momentum" not in trace.settings:
        return np.ones_like(after)  # an optimizer of the sign, for all that is known
    return np.asarray(after / np.maximum(before, 1e-300))


def _clip_place(trace: Trace) -> Place:
    calls = [c for order in trace.orders for c in order if c.what in ("clip_norm", "clip_value") and c.file]
    return calls[0].place if calls else trace.step_place


def _way(trace: Trace) -> float | None:
    """How far the weights could move: the median of ‖Δθ‖ / ‖θ‖, all tensors together, times the updates."""
    _, ways = trace.matrix("update/norm", trace.trained)
    _, norms = trace.matrix("weight/norm", trace.trained)
    if ways.shape != norms.shape or not ways.size:
        return None
    ratios = np.sqrt(np.nansum(ways**2, axis=1)) / np.maximum(np.sqrt(np.nansum(norms**2, axis=1)), 1e-300)
    return float(np.median(ratios)) * trace.updates
