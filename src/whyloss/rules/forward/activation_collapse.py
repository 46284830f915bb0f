"""activation-collapse."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.depth import DEEP, sample_sizes, sizes, slope_along
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.run import Trace
from whyloss.core.sample import falling, flat
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ActivationCollapse(Rule):
    """Each layer makes the signal smaller, until nothing of the input is left.

    ## What it detects
    Before the first update, the standard deviation of what affine layers put out falls geometrically with depth, over
    five layers and more, in a run that does not learn from its inputs.
    ## Why it matters
    The last layers are given next to nothing, and answer with their biases. The gradient of a weight is proportional to
    its input, so that it is as small.
    ## What else looks like this
    Normalised and residual networks, whose profile is level; branches that start at zero; a single narrow layer; the
    mild fall of PyTorch's default behind ReLU; a fall in a run that learns. None of them is reported. Where the
    gradient falls geometrically as well, vanishing-gradient stands above it.
    ## What to do
    Initialise for the fan-in: Kaiming behind ReLU, Xavier behind tanh. Or add normalisation or residual connections.
    """

    name = "activation-collapse"
    boundary = Boundary.FORWARD
    explains = ("loss-flat", "loss-at-baseline", "zero-gradient", "lr-too-low", "plateau-high", "underfitting")
    explained_by = ("bad-init-scale", "vanishing-gradient", "input-constant", "frozen-parameters", "symmetric-init")
    change = "Initialise with Kaiming (ReLU) or Xavier (tanh), or add a normalisation or a residual connection a layer."
    verify = (
        "Run again: activation/std of the last hidden layer is within a factor of 10 of the first one's at update 0."
    )

    total: float = threshold(1e-3, unit="times", why="healthy plain networks that learned kept 0.01 and more")
    layer: float = threshold(0.6, unit="a layer", why="healthy plain networks lay between 0.6 and 1.3 a layer")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        found = sizes(trace)
        if found is None:
            yield self.skipped(f"needs the activations of {DEEP} affine layers before the first update")
            return
        s, last = slope_along(found.values), found.modules[-1]
        falls = s.geometric and s.total <= self.total and s.per_layer <= self.layer
        if not falls or learned_from_input(trace) is not False:
            yield self.passed(f"from the first to the last of {len(found.modules)} layers: {s.total:.2g} times")
            return
        yield self.finding(
            f"what the layers put out shrinks to {s.per_layer:.2g} at each of {len(found.modules)} layers, "
            f"from a std of {found.first:.2g} in {found.modules[0].path} to {found.last:.1g} in {last.path}, "
            "before any update",
            Evidence(f"std of {last.path} over that of {found.modules[0].path}", s.total, self.total, "times", (0,)),
            Evidence("factor of a layer, the median", s.per_layer, self.layer, "a layer", (0,)),
            severity=Severity.WARNING,
            place=trace.place_of_module(found.modules[0]),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        fall, mild, jump = [0.3**k for k in range(10)], [0.7**k for k in range(10)], [1.0] * 5 + [1e-5] * 5
        return (
            fires("0.3 a layer", sample_sizes(fall, flat(200)), Severity.WARNING),
            silent("near miss: the same in a run that learns", sample_sizes(fall, falling(200))),
            silent("near miss: 0.7 a layer", sample_sizes(mild, flat(200))),
            silent("near miss: one layer makes the whole fall", sample_sizes(jump, flat(200))),
            silent("near miss: four layers", sample_sizes(fall[:4], flat(200))),
            silent("near miss: growing", sample_sizes(fall[::-1], flat(200))),
            silent("near miss: too short to say", sample_sizes(fall, flat(10))),
        )
