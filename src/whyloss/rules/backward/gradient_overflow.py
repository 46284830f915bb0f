"""gradient-overflow."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.location import Location, Phase
from whyloss.core.run import Run, Trace
from whyloss.core.sample import sample_run
from whyloss.core.series import Steps
from whyloss.rules.located import GROWN, look, sample_located
from whyloss.rules.rule import Example, Rule, fires, silent


@dataclass(frozen=True)
class GradientOverflow(Rule):
    """Every element of the gradient is finite, but its norm, or the square that the optimizer keeps, is not.

    ## What it detects
    At the first update whose gradient norm is not finite, the step is played again; all gradients are finite, and the
    norm in float32 (or the squares that Adam and its kin keep, in the gradient's own dtype) overflows. Or clipping
    found an infinite norm, and what it left is exactly 0: infinite elements would have left NaN.
    ## Why it matters
    Clipping divides by that norm and turns every gradient into 0 or NaN; Adam's second moment becomes infinite and the
    weight it belongs to stands still from then on.
    ## What else looks like this
    A gradient that is itself infinite (nonfinite-backward). A loss scaler in search of its scale (not reported).
    ## What to do
    Bring the loss down to a sane scale: a mean instead of a sum, standardised targets, a smaller initialisation; or
    compute that part in float32.
    """

    name = "gradient-overflow"
    boundary = Boundary.BACKWARD
    explains = ("loss-nonfinite", "zero-gradient", "exploding-gradient", "update-not-landing", "loss-flat")
    explained_by = GROWN
    change = "Scale the loss down (a mean, standardised targets, a smaller initialisation), or compute it in float32."
    verify = "Run again: grad/total is finite at every update."

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            steps = _wiped_out(trace)
            if len(steps):
                yield self._clipped(trace, steps)
            else:
                yield from look(self, replace(run, traces=(trace,)), _mine)

    def _clipped(self, trace: Trace, steps: Steps) -> Outcome:
        return self.finding(
            f"the norm of the gradient overflows at {len(steps)} of {trace.updates} updates, and clipping makes 0 of "
            "it: its elements are finite, their squares are not",
            Evidence("gradient norm that clipping found", math.inf, "finite", "", (int(steps[0]),)),
            Evidence("gradient norm that clipping left", 0.0, "above 0", "", (int(steps[0]),)),
            severity=Severity.ERROR,
            place=next((c.place for order in trace.orders for c in order if c.what == "clip_norm"), trace.loss_place),
            first_step=int(steps[0]),
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        wiped = {"clip/norm": math.inf, "clip/limit": 1.0, "grad/total": 0.0}
        text = "All gradients are finite, but their norm is beyond float32: fc.weight has elements up to 1e+25."
        return (
            fires(
                "elements near 1e25",
                sample_located(Phase.OVERFLOW, text=text, op="", aten="", became=None),
                Severity.ERROR,
            ),
            fires("clipping finds an infinite norm and leaves 0", sample_run(signals=wiped), Severity.ERROR),
            silent(
                "near miss: infinite elements, of which NaN is left",
                sample_run(signals=wiped | {"grad/total": math.nan}),
            ),
            silent("near miss: an element is infinite", sample_located(Phase.BACKWARD)),
            silent("all finite", sample_run()),
        )


def _wiped_out(trace: Trace) -> Steps:
    """The updates at which clipping found an infinite norm and left a gradient of 0."""
    found, left = trace.signal("clip/norm"), trace.signal("grad/total")
    if found is None or left is None:
        return np.zeros(0, dtype=np.int64)
    return np.intersect1d(found.steps[np.isposinf(found.values)], left.steps[left.high == 0.0])


def _mine(location: Location, step: int) -> bool:
    return location.phase is Phase.OVERFLOW
