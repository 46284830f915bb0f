"""gradient-overflow."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Outcome, Severity
from whyloss.core.location import Location, Phase
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.located import GROWN, look, sample_located
from whyloss.rules.rule import Example, Rule, fires, silent


@dataclass(frozen=True)
class GradientOverflow(Rule):
    """Every element of the gradient is finite, but its norm, or the square that the optimizer keeps, is not.

    ## What it detects
    At the first update whose gradient norm is not finite, the step is played again; all gradients are finite, and the
    norm in float32 (or the squares that Adam and its kin keep, in the gradient's own dtype) overflows.
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
    explains = ("loss-nonfinite",)
    explained_by = GROWN
    change = "Scale the loss down (a mean, standardised targets, a smaller initialisation), or compute it in float32."
    verify = "Run again: grad/total is finite at every update."

    def check(self, run: Run) -> Iterator[Outcome]:
        return look(self, run, _mine)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        text = "All gradients are finite, but their norm is beyond float32: fc.weight has elements up to 1e+25."
        return (
            fires(
                "elements near 1e25",
                sample_located(Phase.OVERFLOW, text=text, op="", aten="", became=None),
                Severity.ERROR,
            ),
            silent("near miss: an element is infinite", sample_located(Phase.BACKWARD)),
            silent("all finite", sample_run()),
        )


def _mine(location: Location, step: int) -> bool:
    return location.phase is Phase.OVERFLOW
