"""clip-mid-accumulation."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.clipping import clipping
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.order import inner_clip, share_of_updates
from whyloss.core.run import Call, Trace
from whyloss.core.sample import ORDER, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ClipMidAccumulation(Rule):
    """The sum of gradients is clipped again and again while it is still being added up.

    ## What it detects
    Clipping between two backward passes of one line whose gradients are accumulated, with a limit that takes something
    away at most updates.
    ## Why it matters
    What the first micro-batches gave is cut down each time, the last one comes on top of it: the update is no mean of
    the batch, and its length depends on the order of the micro-batches.
    ## What else looks like this
    Clipping once, after the last backward pass; gradients that are cleared after each clipping and summed elsewhere;
    `max_norm=inf`, a measurement; losses of several lines, each with its clipping. None is reported.
    ## What to do
    Clip once an update, right before `step()`.
    """

    name = "clip-mid-accumulation"
    boundary = Boundary.UPDATE
    explains = (
        *("clip-too-small", "lr-too-low", "loss-noisy", "loss-flat", "loss-at-baseline", "plateau-high"),
        *("underfitting", "not-converged"),
    )
    change = "Move the clipping under the condition under which step() is called, right before it."
    verify = "Run again: one clipping an update, between the last backward pass and the step."

    share: float = threshold(
        0.5, unit="of the updates", why="the order is the loop's own; windows of one micro-batch have no middle"
    )
    bitten: float = threshold(0.5, unit="of the updates", why="a limit that seldom takes something changes little")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        clip, share = clipping(trace), share_of_updates(trace, lambda order: inner_clip(order) is not None)
        if clip is None or share is None or not clip.finite:
            yield self.skipped("no clipping with a finite limit was seen")
            return
        if share < self.share:
            yield self.passed(f"clipped within the accumulation at {share:.0%} of {trace.updates} updates")
            return
        call = next(c for order in trace.orders if (c := inner_clip(order)) is not None)
        passes = trace.signal("backwards")
        yield self.finding(
            f"gradients are clipped between the {passes.last if passes else 2:.0f} backward passes of one update"
            + ("" if clip.bitten >= self.bitten else "; the limit seldom takes anything away"),
            Evidence("updates with clipping within the accumulation", share, self.share, "of all"),
            Evidence("share of updates that are clipped", clip.bitten, self.bitten),
            Evidence("limit", float(np.median(clip.limits))),
            severity=Severity.WARNING if clip.bitten >= self.bitten else Severity.INFO,
            place=call.place,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        zero, back, step = ORDER
        clip = Call("clip_norm", "train.py", 23)
        inner = (zero, *(back, clip) * 4, step)
        tight = {"clip/limit": 0.1, "clip/norm": 0.4, "backwards": 4.0}
        other = Call("backward", "train.py", 30)
        return (
            fires("clipped after each of four passes", sample_run(order=inner, signals=tight), Severity.WARNING),
            fires("not after the last", sample_run(order=(zero, *(back, clip) * 3, back, step), signals=tight)),
            silent("near miss: clipped once", sample_run(order=(zero, *(back,) * 4, clip, step), signals=tight)),
            silent("near miss: cleared in between", sample_run(order=(zero, back, clip) * 3 + (step,), signals=tight)),
            silent("near miss: a measurement", sample_run(order=inner, signals=tight | {"clip/limit": np.inf})),
            silent("near miss: nothing taken away", sample_run(order=inner, signals=tight | {"clip/norm": 0.05})),
            silent(
                "near miss: another line's loss", sample_run(order=(zero, back, clip, other, clip, step), signals=tight)
            ),
        )
