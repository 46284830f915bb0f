"""nonfinite-backward."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Outcome, Severity
from whyloss.core.location import Location, Phase
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.located import GROWN, look, sample_located
from whyloss.rules.rule import Example, Rule, fires, silent

ROOT = "Its derivative is infinite at 0: add eps inside the root, √(x + eps)."
TOO_LARGE = "A product of gradients grew beyond its dtype on the way back: normalise or clip earlier, or use float32."
EDGE = "Its derivative is infinite at ±1: keep the argument inside with clamp(−1 + eps, 1 − eps)."
CHANGES = {
    "sqrt": ROOT,
    "norm": ROOT,
    "dist": ROOT,
    "std": "Its derivative is not defined where all elements are equal: take the root of the variance plus eps.",
    "pow": "Its derivative is infinite at 0 for a power below 1: take the power of x + eps.",
    "acos": EDGE,
    "asin": EDGE,
    "where": "Both branches have a gradient: put a harmless value into the one that is discarded before computing it.",
    "log": "Keep its argument above 0 also where the result is discarded: torch.where(ok, x, 1).log().",
    "div": "Keep the divisor away from 0 also where the result is discarded: divide by torch.where(ok, y, 1).",
    "exp": "Keep its argument small also where the result is discarded: clamp it before exp.",
    "norm_except_dim": ROOT,
    "mul": TOO_LARGE,
    "mm": TOO_LARGE,
    "linear": TOO_LARGE,
    "conv": TOO_LARGE,
    "matmul": TOO_LARGE,
}


@dataclass(frozen=True)
class NonfiniteBackward(Rule):
    """The loss is finite, and the gradient of one call is not.

    ## What it detects
    At the first update whose gradient is not finite the step is played again, and the earliest gradient in backward is
    named that is not finite although all that came back to it was, if it reaches a parameter. The line is that of the
    forward call whose gradient it is.
    ## Why it matters
    The loss shows nothing, and the update makes every weight non-finite that the gradient reaches.
    ## What else looks like this
    A non-finite gradient that a mask or `where` removes before it reaches a parameter (not reported). Gradients that
    are finite while their norm is not (gradient-overflow).
    ## What to do
    Roots, norms and powers below 1 at 0, acos at ±1, and the branch that `where` discards: keep the argument off that
    point before the call.
    """

    name = "nonfinite-backward"
    boundary = Boundary.BACKWARD
    explains = ("loss-nonfinite", "loss-hidden-nan", "scaler-collapsed")
    explained_by = GROWN
    change = "Keep the argument of the call that is named off the point where its derivative is infinite."
    verify = "Run again: every grad/norm is finite past that update."

    def check(self, run: Run) -> Iterator[Outcome]:
        return look(self, run, _mine, CHANGES)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        text = "The loss is finite, but the gradient of torch.sqrt (SqrtBackward0) is inf from [0, 1.5]."
        return (
            fires(
                "the root of 0",
                sample_located(Phase.BACKWARD, text=text, op="torch.sqrt", aten="SqrtBackward0"),
                Severity.ERROR,
            ),
            silent("near miss: the forward call gave it", sample_located(Phase.FORWARD)),
            silent("near miss: only the norm overflows", sample_located(Phase.OVERFLOW)),
            silent("all finite", sample_run()),
        )


def _mine(location: Location, step: int) -> bool:
    return location.phase is Phase.BACKWARD
