"""activation-explosion."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.depth import DEEP, sample_sizes, sizes, slope_along
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly, learned_from_input
from whyloss.core.run import Trace
from whyloss.core.sample import falling, flat
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ActivationExplosion(Rule):
    """Each layer makes the signal larger, so that the first outputs are enormous.

    ## What it detects
    Before the first update, the standard deviation of what affine layers put out grows geometrically with depth, over
    five layers and more, in a run that does not learn from its inputs or ends poorly.
    ## Why it matters
    The first predictions, the loss and the gradient are larger by the same factor. One update then throws the weights
    anywhere, or the values overflow.
    ## What else looks like this
    Normalised networks, whose profile is level; a residual stream that grows by the sum of its branches; a single wide
    layer; growth in a run that learns well. None of them is reported.
    ## What to do
    Initialise for the fan-in (Kaiming behind ReLU, Xavier behind tanh), scale residual branches by 1/√depth, or
    normalise each layer.
    """

    name = "activation-explosion"
    boundary = Boundary.FORWARD
    explains = (
        *("exploding-gradient", "loss-off-baseline", "loss-nonfinite", "loss-diverging", "lr-too-high", "loss-flat"),
        *("loss-at-baseline", "nonfinite-forward", "nonfinite-backward", "gradient-overflow", "dead-relu"),
        *("saturated-activation", "plateau-high", "loss-spikes", "clip-too-small"),
    )
    explained_by = ("bad-init-scale",)
    change = "Initialise with Kaiming (ReLU) or Xavier (tanh), scale residual branches down, or normalise each layer."
    verify = (
        "Run again: activation/std of the last hidden layer is within a factor of 10 of the first one's at update 0."
    )

    total: float = threshold(1e3, unit="times", why="healthy networks without normalisation stayed below 10")
    layer: float = threshold(1.5, unit="a layer", why="healthy deep networks had at most 1.3 a layer")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        found = sizes(trace)
        if found is None:
            yield self.skipped(f"needs the activations of {DEEP} affine layers before the first update")
            return
        s, last = slope_along(found.values), found.modules[-1]
        grows = s.geometric and s.total >= self.total and s.per_layer >= self.layer
        if not grows or not (_broke(trace) or learned_from_input(trace) is False or ends_poorly(trace)):
            yield self.passed(f"from the first to the last of {len(found.modules)} layers: {s.total:.2g} times")
            return
        yield self.finding(
            f"what the layers put out grows {s.per_layer:.2g} times at each of {len(found.modules)} layers, "
            f"from a std of {found.first:.2g} in {found.modules[0].path} to {found.last:.2g} in {last.path}, "
            "before any update",
            Evidence(f"std of {last.path} over that of {found.modules[0].path}", s.total, self.total, "times", (0,)),
            Evidence("factor of a layer, the median", s.per_layer, self.layer, "a layer", (0,)),
            severity=Severity.WARNING,
            place=trace.place_of_module(found.modules[0]),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        blocks = [size for k in range(10) for size in (4.0**k, 3.0 * 4.0**k * 0.3)]
        grow, mild, jump = [4.0**k for k in range(8)], [1.3**k for k in range(10)], [1.0] * 5 + [1e5] * 5
        return (
            fires("four times a layer", sample_sizes(grow, flat(200, 1e4)), Severity.WARNING),
            fires("it overflows", sample_sizes(grow, [1e6, 1e9, float("nan"), float("nan")]), Severity.WARNING),
            fires("residual blocks, whose layers alternate", sample_sizes(blocks, flat(200, 1e9)), Severity.WARNING),
            silent("near miss: the same in a run that learns", sample_sizes(grow, falling(200))),
            silent("near miss: 1.3 a layer", sample_sizes(mild, flat(200))),
            silent("near miss: one layer makes the whole growth", sample_sizes(jump, flat(200))),
            silent("near miss: shrinking", sample_sizes(grow[::-1], flat(200))),
        )


def _broke(trace: Trace) -> bool:
    return trace.loss is not None and len(trace.loss.finite) < len(trace.loss)
