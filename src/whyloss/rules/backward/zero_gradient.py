"""zero-gradient."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.run import Tensor, Trace
from whyloss.core.sample import flat, sample_run
from whyloss.core.series import ABSENT
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ZeroGradient(Rule):
    """Weights are connected to the loss, yet their gradient is exactly 0 at every update.

    ## What it detects
    The gradient of whole weights is 0.0 in every element at each update, from the first one on: of all that the
    optimizer trains, of every weight (so that only biases move), or of some layers in a run that doesn't learn.
    ## Why it matters
    A gradient of exactly 0 is not a small one: something between the weight and the loss multiplies by 0, and the
    optimizer cannot move the weight, whatever the rate.
    ## What else looks like this
    None (the weight has no path to the loss, see detached-parameters); the first factor of a low-rank adapter and the
    inside of a zero-initialised branch, which are 0 at the first update only; experts that no example was sent to;
    layers that rest while the rest of the network learns (info); a loss that is 0 already.
    ## What to do
    Look right behind the place named, the last without a gradient in the forward pass: a dead ReLU, a softmax over one
    unit, a gate, mask or weight that is 0, a saturated output, both factors of a product at 0.
    """

    name = "zero-gradient"
    boundary = Boundary.BACKWARD
    symptom = True
    explains = ("loss-flat", "loss-at-baseline", "lr-too-low", "update-not-landing")
    explained_by = (
        "dead-relu",
        "symmetric-init",
        "gradient-cleared-early",
        "vanishing-gradient",
        "softmax-wrong-axis",
        "output-range",
        "saturated-activation",
        "input-constant",
        "targets-all-ignored",
    )
    change = "Find what multiplies by 0 between these weights and the loss, and remove it."
    verify = "Run again: the gradient norm of these weights is above 0 from the second update on."

    updates: int = threshold(
        5, unit="updates", why="zero factors and branches get a gradient once their partner has moved"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        seen = [t for t in trace.trained if self._observed(trace, t)]
        if not seen:
            yield self.skipped(f"needs the gradient of {self.updates} updates after the first one that moved something")
            return
        zero = [t for t in seen if _always_zero(trace, t)]
        weights = [t for t in zero if len(t.shape) > 1]
        live = [t for t in seen if t not in zero]
        if not zero or (live and not weights):
            yield self.passed(f"each of {len(seen) - len(zero)} trained tensors had a gradient other than 0")
            return
        place = _last(trace, zero, live)
        rest = f"; {live[0].name} gets one" if live else ": nothing that is trained can move"
        yield self.finding(
            f"{len(zero)} of {len(seen)} trained tensors get a gradient of exactly 0 at all {trace.updates} updates, "
            f"in the forward pass up to {place.module or zero[-1].name}{rest}",
            Evidence("trained tensors whose gradient is always 0", len(zero), 0, "tensors", (0, trace.updates - 1)),
            Evidence("largest gradient norm among them", 0.0, "above 0"),
            severity=_severity(trace, weights, live),
            place=place,
            certain=True,
        )

    def _observed(self, trace: Trace, t: Tensor) -> bool:
        """Enough gradients were seen after the first update at a rate above 0."""
        gradient = trace.signal(f"grad/norm[{t.name}]")
        rate = trace.signal(f"lr[{t.group}]")
        if gradient is None:
            return False
        begun = rate.steps[rate.high > 0] if rate is not None else gradient.steps
        return (
            len(begun) > 0
            and int(np.sum(gradient.steps > begun[0])) >= self.updates - 1
            and len(gradient) >= self.updates
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "head.weight", "head.bias")
        zero = {f"grad/norm[{n}]": 0.0 for n in names}
        weights = {k: v for k, v in zero.items() if k != "grad/norm[head.bias]"}
        first = {k: np.minimum(np.arange(200.0), 0.1) for k in weights}
        some = {"grad/norm[fc1.weight]": 0.0, "grad/norm[fc1.bias]": 0.0}
        warm = {"lr[0]": np.maximum(np.arange(8.0) - 5, 0), "grad/norm[fc1.weight]": np.maximum(np.arange(8.0) - 6, 0)}
        return (
            fires("nothing can move", sample_run(loss=flat(40), signals=zero), Severity.ERROR),
            fires("six updates are enough", sample_run(6, signals=zero), Severity.ERROR),
            fires("only the last bias moves", sample_run(loss=flat(200), signals=weights), Severity.ERROR),
            fires("one layer, nothing learned", sample_run(loss=flat(200), signals=some), Severity.WARNING),
            silent("near miss: one layer rests, the rest learns", sample_run(signals=some)),
            silent("near miss: zero at the first update only", sample_run(signals=first)),
            silent(
                "near miss: no gradient is not a gradient of 0",
                sample_run(loss=flat(200), signals=dict.fromkeys(some, ABSENT)),
            ),
            silent(
                "near miss: a bias before a normalisation",
                sample_run(loss=flat(200), signals={"grad/norm[fc1.bias]": 0.0}),
            ),
            silent("near miss: zero factor, rate 0 for five updates", sample_run(8, signals=warm)),
            silent("near miss: the loss is 0 already", sample_run(loss=np.zeros(50), signals=zero)),
        )


def _always_zero(trace: Trace, t: Tensor) -> bool:
    gradient = trace.signal(f"grad/norm[{t.name}]")
    return gradient is not None and bool(np.all(gradient.low == 0) & np.all(gradient.high == 0))


def _last(trace: Trace, zero: list[Tensor], live: list[Tensor]) -> Place:
    """The output-most layer without any gradient, or a module without weights (a softmax) that runs right after it."""
    living = {t.module for t in live}
    last = max([t for t in zero if t.module not in living] or zero, key=lambda t: (trace.depth(t), -zero.index(t)))
    after = sorted((m.order, m.path) for m in trace.modules if m.order is not None and m.order > trace.depth(last))
    owned = {t.module for t in trace.tensors}
    if trace.depth(last) < 0 or not after or after[0][1] in owned:
        return trace.place_of(last)
    following = trace.module(after[0][1])
    return replace(following.place, module=following.path) if following else trace.place_of(last)


def _severity(trace: Trace, weights: list[Tensor], live: list[Tensor]) -> Severity:
    """Nothing moves, or only biases of layers whose weight is among them: error. Else by whether the run learns."""
    if trace.loss is not None and not np.any(trace.loss.high):
        return Severity.INFO
    owners = {t.module for t in weights}
    if all(len(t.shape) < 2 and t.module in owners for t in live) and (not live or len(weights) > 1):
        return Severity.INFO if not live and learned_from_input(trace) else Severity.ERROR
    experts = {s for t in weights if (m := trace.module(t.module)) is not None for s in m.siblings}
    idle = any(t.module in experts for t in live)
    return Severity.WARNING if learned_from_input(trace) is False and not idle else Severity.INFO
