"""clip-after-step."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.clipping import clipping
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.order import late_clip, share_of_updates
from whyloss.core.progress import learned
from whyloss.core.run import Call, Trace
from whyloss.core.sample import ORDER, flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ClipAfterStep(Rule):
    """Gradients are clipped when the step has already been made with them, so the clipping does nothing.

    ## What it detects
    Clipping between a step and the next backward pass, before or after `zero_grad`, at every update, and none between
    backward and step; while the gradients of the steps did exceed the limit.
    ## Why it matters
    Outliers reach the weights in full, though the script looks as if it held them back.
    ## What else looks like this
    `max_norm=inf`, a measurement; a limit that no gradient exceeds, which is an info; clipping inside a closure;
    weights that are clipped, which is another call. None is alarmed.
    ## What to do
    Clip after `backward()` and before `step()`.
    """

    name = "clip-after-step"
    boundary = Boundary.UPDATE
    explains = (
        *("loss-diverging", "loss-nonfinite", "loss-spikes", "loss-oscillating", "exploding-gradient", "lr-too-high"),
        *("nonfinite-forward", "nonfinite-backward", "gradient-overflow", "dead-relu"),
    )
    change = "Move the clipping between backward() and step()."
    verify = "Run again: grad/total at the step does not exceed the limit."

    updates: int = threshold(3, unit="updates", why="three in a row show the order of the loop")
    share: float = threshold(0.9, unit="of the updates", why="the order is the loop's own; an epoch may end otherwise")
    bitten: float = threshold(
        0.05, unit="of the updates", why="rarer outliers are seen in healthy runs and do no harm that can be seen"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        clip = clipping(trace, trace.signal("grad/total"))
        share = share_of_updates(trace, lambda order: late_clip(order) is not None, since=1)
        if clip is None or share is None or trace.updates < self.updates or not clip.finite:
            yield self.skipped("no clipping with a finite limit was seen")
            return
        if share < self.share:
            yield self.passed(f"clipped between backward and step; only afterwards at {share:.0%} of the updates")
            return
        call = next(c for order in trace.orders if (c := late_clip(order)) is not None)
        harm = clip.bitten >= self.bitten or (learned(trace) is False and clip.bitten > 0.0)
        largest = trace.signal("grad/total")
        yield self.finding(
            f"{call.what} comes after the step, {'and' if harm else 'which it would not have changed:'} "
            f"{clip.bitten:.0%} of the updates were made with gradients above its limit",
            Evidence("updates with clipping after the step alone", share, self.share, "of all", (1, trace.updates - 1)),
            Evidence("updates whose gradient exceeds the limit", clip.bitten, self.bitten, "of all"),
            Evidence("largest gradient norm at a step", _largest(largest.high if largest else np.zeros(0))),
            severity=Severity.WARNING if harm else Severity.INFO,
            place=call.place,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        zero, back, step = ORDER
        clip = Call("clip_norm", "train.py", 24)
        late, empty = (clip, zero, back, step), (zero, clip, back, step)
        large = {"clip/limit": 1.0, "clip/norm": 5.0, "grad/total": 5.0}
        some = np.where(np.arange(60) == 7, 3.0, 0.5)
        return (
            fires("clipped after the step", sample_run(order=late, signals=large), Severity.WARNING),
            fires("clipped when nothing is there", sample_run(order=empty, signals=large | {"clip/norm": 0.0})),
            fires("one outlier, and no learning", sample_run(loss=flat(60), order=late, signals=_with(large, some))),
            silent("near miss: before the step", sample_run(order=(zero, back, clip, step), signals=large)),
            silent("near miss: before and after", sample_run(order=(clip, zero, back, clip, step), signals=large)),
            silent("near miss: in a closure", sample_run(order=(step, zero, back, clip), signals=large)),
            silent("near miss: a measurement", sample_run(order=late, signals=large | {"clip/limit": np.inf})),
            silent("near miss: nothing exceeds it", sample_run(order=late, signals=large | {"grad/total": 0.3})),
        )


def _with(signals: dict[str, float], total: np.ndarray) -> dict[str, object]:
    return {**signals, "grad/total": total}


def _largest(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else float("nan")
