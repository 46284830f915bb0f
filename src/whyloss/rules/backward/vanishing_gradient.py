"""vanishing-gradient."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.depth import FEWEST, Profile, Slope, profile, sample_deep, slope
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.run import Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

EARLY = 20  # updates; the slope must hold over these and over the whole run
SIGMOID = 0.35  # slope of an activation, at the most, to be taken for a sigmoid's; behind a ReLU it is 0.71


@dataclass(frozen=True)
class VanishingGradient(Rule):
    """The gradient shrinks layer by layer on its way back, so the first layers hardly learn.

    ## What it detects
    The gradient's root mean square falls geometrically from the last layer to the first (of the weights, or of the
    biases, which get the signal itself), in the median of the first 20 updates and of all, over four layers and more;
    the last layer moves, and the loss has not fallen.
    ## Why it matters
    Each layer multiplies the gradient by its slope and its weights. A sigmoid's slope is at most 0.25: ten such layers
    leave a millionth. The layers nearest to the input keep their initial values, and feed the rest with noise.
    ## What else looks like this
    One small layer (biases in front of a normalisation); residual and normalised networks, whose profile is level; a
    deep network under Adam, which evens out the sizes: a run that learns is not reported.
    ## What to do
    ReLU or GELU in place of sigmoid and tanh, Kaiming or Xavier initialisation, residual connections, normalisation.
    """

    name = "vanishing-gradient"
    boundary = Boundary.BACKWARD
    explains = ("zero-gradient", "loss-flat", "loss-at-baseline", "lr-too-low", "plateau-high", "underfitting")
    change = "Use ReLU or GELU with Kaiming initialisation, or residual connections, or a normalisation in each layer."
    verify = "Run again: the gradient of the first layer is within a factor of 100 of the last one's."

    total: float = threshold(
        1e-3, unit="times", why="the first layer needs a thousand updates for one of the last; healthy: > 0.05"
    )
    layer: float = threshold(
        0.5, unit="a layer", why="healthy deep networks lay between 0.6 and 1.3; sigmoids leave 0.14"
    )
    moves: float = threshold(
        1e-5, unit="of the norm", why="where the last layer stands still too, the rate is the matter"
    )
    extreme: float = threshold(
        1e-6, unit="times", why="float32 keeps 1e-7: with updates so far apart the first layers round to 0"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        both = [(profile(trace, part, EARLY), profile(trace, part)) for part in ("weight", "bias")]
        known = [(early, whole) for early, whole in both if early is not None and whole is not None]
        if not known:
            yield self.skipped(f"needs {FEWEST} affine layers in a row with a gradient")
            return
        falls = [p for early, p in known if self._falls(slope(early)) and self._falls(slope(p))]
        least = min((slope(p) for _, p in known), key=lambda s: s.total)
        limit = self.total if learned_from_input(trace) is False else self.extreme
        falls = [p for p in falls if slope(p).total <= limit]
        if not falls or learned_from_input(trace) or not self._last_moves(trace, falls[0]):
            yield self.passed(f"from the last layer to the first the gradient changes by a factor of {least.total:.2g}")
            return
        yield self._report(trace, min(falls, key=lambda p: slope(p).total))

    def _falls(self, s: Slope) -> bool:
        return s.geometric and s.total <= self.total and s.per_layer <= self.layer

    def _last_moves(self, trace: Trace, p: Profile) -> bool:
        """The largest median of ‖Δθ‖/‖θ‖ in the output-most module."""
        ratios = [0.0]
        for t in (t for t in trace.trained if t.module == p.tensors[-1].module):
            way, norm = trace.signal(f"update/norm[{t.name}]"), trace.signal(f"weight/norm[{t.name}]")
            if way is not None and norm is not None:
                ratios.append(float(np.median(way.values) / max(float(np.median(norm.values)), 1e-30)))
        return max(ratios) >= self.moves

    def _report(self, trace: Trace, p: Profile) -> Outcome:
        s, first, last = slope(p), p.tensors[0], p.tensors[-1]
        return self.finding(
            f"the gradient shrinks to {s.per_layer:.2g} at each of {len(p.tensors)} layers on the way back, "
            f"to {s.total:.1g} from {last.name} to {first.name}{_reason(p, s)}",
            Evidence(
                f"gradient of {first.name} over that of {last.name}", s.total, self.total, "", (0, trace.updates - 1)
            ),
            Evidence("factor of a layer, the median", s.per_layer, self.layer, "a layer"),
            severity=Severity.WARNING,
            place=trace.place_of(first),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        fall, ramp, step = 0.15 ** np.arange(10.0), 0.6 ** np.arange(10.0), np.where(np.arange(10) > 0, 1e-8, 1.0)
        still = {f"update/norm[head.{part}]": 0.0 for part in ("weight", "bias")}
        return (
            fires("ten sigmoid layers", sample_deep(fall[::-1], flat(200), "Sigmoid"), Severity.WARNING),
            fires("seen in the biases only", sample_deep(fall[::-1], flat(200), weights=1.0), Severity.WARNING),
            fires("fifteen updates, extreme", sample_deep(fall[::-1], flat(15)), Severity.WARNING),
            silent("near miss: a slope, but it learns", sample_deep(fall[::-1], falling(200))),
            silent("near miss: level profile, nothing learned", sample_deep(np.ones(10), flat(200))),
            silent("near miss: 0.6 a layer", sample_deep(ramp[::-1], flat(200))),
            silent("near miss: one jump, as before a normalisation", sample_deep(step[::-1], flat(200))),
            silent("near miss: the last layer stands still too", sample_deep(fall[::-1], flat(200), more=still)),
            silent("near miss: growing toward the input", sample_deep(fall, flat(200))),
            silent("near miss: three layers", sample_run(loss=flat(200), signals={"grad/norm[fc1.weight]": 1e-9})),
        )


def _reason(p: Profile, s: Slope) -> str:
    """Which of the two it is. A layer passes on its weights' gain, std·√fan_in, times its activation's slope."""
    gains = [t.std * t.fan_in**0.5 for t in p.weights if t.std is not None]
    gain = float(np.median(gains)) if gains else 0.0
    if not gain > 0:
        return ""
    passed = s.per_layer / gain
    if passed <= SIGMOID:
        return f": behind weights of {gain:.2g}/√fan_in the activations pass on {passed:.2g}; a sigmoid at most 0.25"
    if gain < 1:
        return f": the weights start at {gain:.2g}/√fan_in, while 1 keeps a signal's size, and √2 behind a ReLU"
    return ""
