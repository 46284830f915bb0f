"""nonfinite-forward."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Outcome, Severity
from whyloss.core.location import BadLeaf, Location, NonFinite, Phase
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.located import GROWN, look, sample_located
from whyloss.rules.rule import Example, Rule, fires, silent

STATE = ("buffer", "parameter")  # of the model; what it is given is data
UNMASK = "Leave one position unmasked in every row, or set the rows without one to 0 afterwards."
INSIDE = "Keep its argument inside (−1, 1): x.clamp(−1 + eps, 1 − eps)."
NO_TARGET = "A batch without any valid target has a mean of 0/0: leave it out, or divide by max(count, 1)."
TOO_LARGE = "It is beyond the largest value of its dtype: scale what goes in down, or compute it in float32."
CHANGES = {
    "log": "Keep its argument above 0: x.clamp_min(eps); take log_softmax or logsigmoid where it is a probability.",
    "div": "Keep the divisor away from 0: add eps, or leave out what would be divided by 0.",
    "sqrt": "Keep its argument at 0 or above: add eps inside the root.",
    "reciprocal": "Keep its argument away from 0: add eps.",
    "exp": "Keep its argument small: subtract the maximum first, clamp it, or use torch's softplus and logsumexp.",
    "pow": "A fractional power wants a base above 0: clamp it, or take the power of |x| + eps.",
    "norm": "Add eps under the root: a vector of zeros has no direction.",
    "softmax": UNMASK,
    "attention": UNMASK,
    "acos": INSIDE,
    "asin": INSIDE,
    "std": "Take it over more than one element, or with correction=0, and add eps.",
    "var": "Take it over more than one element, or with correction=0, and add eps.",
    "nll_loss": NO_TARGET,
    "cross_entropy": NO_TARGET,
    "mm": TOO_LARGE,
    "mul": TOO_LARGE,
    "sum": TOO_LARGE,
    "cumprod": TOO_LARGE,
    "_to_copy": TOO_LARGE,
}


@dataclass(frozen=True)
class NonfiniteForward(Rule):
    """A call of the forward pass makes a NaN or an infinity out of finite values, and it reaches the loss.

    ## What it detects
    At the first update whose loss or gradient is not finite the step is played again, from what it was given, and the
    earliest call is named whose inputs are finite, whose result is not, and whose result reaches the loss. Also a
    buffer, or a parameter at the first update, that is not finite before any call.
    ## Why it matters
    One update with it makes the weights non-finite. The cause is that call and its arguments, not the rate.
    ## What else looks like this
    −inf in an attention mask, and values that `where` discards: they do not reach the loss. An overflow after the loss,
    the gradient or the weights had grown: what made them grow stands above it then.
    ## What to do
    Keep the arguments of the call inside its domain, at the line that is named.
    """

    name = "nonfinite-forward"
    boundary = Boundary.FORWARD
    explains = ("loss-nonfinite", "loss-hidden-nan", "scaler-collapsed")
    explained_by = GROWN
    change = "Keep the arguments of the call that is named inside its domain."
    verify = "Run again: the loss is finite past that update."

    def check(self, run: Run) -> Iterator[Outcome]:
        return look(self, run, _mine, CHANGES)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        values = NonFinite(nan=3, positive=0, negative=0, elements=8)
        buffer = BadLeaf(role="buffer", name="norm.running_var", values=values)
        data = BadLeaf(role="input", name="x", values=values)
        return (
            fires("log of 0", sample_located(Phase.FORWARD), Severity.ERROR),
            fires("a buffer that holds NaN", sample_located(Phase.LEAF, leaf=buffer), Severity.ERROR),
            fires("only the side is known", sample_located(Phase.OBJECTIVE_SIDE, op="", aten=""), Severity.ERROR),
            silent("near miss: it arose in backward", sample_located(Phase.BACKWARD)),
            silent("near miss: the input was bad", sample_located(Phase.LEAF, leaf=data)),
            silent("all finite", sample_run()),
        )


def _mine(location: Location, step: int) -> bool:
    state = location.leaf is not None and location.leaf.role in STATE
    sides = location.phase in (Phase.FORWARD, Phase.MODEL_SIDE, Phase.OBJECTIVE_SIDE)
    return sides or (location.phase is Phase.LEAF and state)
