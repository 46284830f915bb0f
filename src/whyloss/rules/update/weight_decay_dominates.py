"""weight-decay-dominates."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.movement import weights
from whyloss.core.run import Tensor, Trace
from whyloss.core.sample import falling, flat, sample_run, sample_tensors
from whyloss.core.series import Floats
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

DECOUPLED = ("AdamW", "SGDW", "Lion", "Muon", "Adan", "LAMB", "Sophia")


@dataclass(frozen=True)
class _Terms:
    """Norms over all decayed weights, at the observed updates."""

    decay: Floats
    gradient: Floats
    weight: Floats
    decoupled: bool


@dataclass(frozen=True)
class WeightDecayDominates(Rule):
    """Weight decay pulls harder at the weights than the gradient does, and shrinks them to nothing.

    ## What it detects
    The decay's part of the updates is larger than the gradient's from the first updates on, the weights shrink to less
    than half, and the loss does not get far. Where decay is added to the gradient, wd·‖w‖ is held against ‖g‖; where it
    is decoupled (AdamW), rate·wd·‖w‖ against the rest of the true update.
    ## Why it matters
    The network forgets faster than it learns: its outputs go to a constant.
    ## What else looks like this
    Customary decay, which is a hundredth of the gradient's part; strong decay in a run that learns; a converged network
    whose gradient has become as small as its decay. None is reported.
    ## What to do
    Start from weight_decay=0; customary values are 1e-5 to 1e-3 for SGD and Adam, 0.01 to 0.1 for AdamW.
    """

    name = "weight-decay-dominates"
    boundary = Boundary.UPDATE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "vanishing-gradient", "zero-gradient"),
        *("dead-relu", "activation-collapse", "input-ignored", "not-converged"),
    )
    change = "Lower weight_decay by a factor of 100 and more, or set it to 0."
    verify = "Run again: weight/norm stays near where it began, and the loss falls."

    looks: int = threshold(10, unit="observed updates", why="medians of fewer say little")
    first: int = threshold(20, unit="observed updates", why="before the weights have shrunk, which evens the two parts")
    ratio: float = threshold(1.0, unit="times the gradient's part", why="customary decay is a hundredth of it")
    shrunk: float = threshold(
        0.5, unit="of the norm", why="learning changes norms too: fresh networks gain or lose a few tenths"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        terms = _terms(trace)
        if terms is None or len(terms.weight) < self.looks:
            yield self.skipped(f"needs a weight decay and {self.looks} observed updates")
            return
        early = slice(0, self.first)
        with np.errstate(all="ignore"):
            ratio = float(np.median(terms.decay[early] / terms.gradient[early]))
            left = float(terms.weight[-1] / terms.weight[0])
        if not np.median(terms.gradient[early]) > 0.0 and not terms.decoupled:
            yield self.passed("the weights had no gradient at all")
            return
        if not ratio > self.ratio or not left < self.shrunk or not ends_poorly(trace):
            yield self.passed(
                f"decay is {ratio:.2g} times the gradient's part; {left:.0%} of the weights' norm is left"
            )
            return
        most = max(float(s.high.max()) for g in range(trace.groups) if (s := trace.signal(f"decay[{g}]")) is not None)
        often = "far harder than" if not ratio < 1e3 else f"{ratio:.3g} times as hard as"
        yield self.finding(
            f"a weight decay of {most:.3g} pulls at the weights {often} the gradient: they shrink to "
            f"{left:.2%} of their norm, and the loss stays high",
            Evidence("decay's part of an update over the gradient's", ratio, self.ratio, "times", (0, self.first - 1)),
            Evidence("weight norm at the end over that at the start", left, self.shrunk, "", (0, trace.updates - 1)),
            Evidence("weight_decay", most),
            severity=Severity.WARNING,
            place=trace.place,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [t.name for t in sample_tensors() if len(t.shape) > 1]
        fade = {f"weight/norm[{n}]": np.geomspace(5.0, 0.01, 60) for n in names}
        strong: dict[str, Any] = {"decay[0]": 1.0} | fade
        pull = {f"update/norm[{n}]": 1e-3 * 50 * np.geomspace(5.0, 0.01, 60) for n in names}
        sgd: dict[str, Any] = {"loss": flat(60), "optimizer": "SGD"}
        decoupled: dict[str, Any] = {"loss": flat(60), "optimizer": "AdamW"}
        return (
            fires("decay 1 under SGD", sample_run(signals=strong, **sgd), Severity.WARNING),
            fires("decay 50 under AdamW", sample_run(signals=fade | pull | {"decay[0]": 50.0}, **decoupled)),
            silent("near miss: decay 0.01 under AdamW", sample_run(signals=fade | {"decay[0]": 0.01}, **decoupled)),
            silent("near miss: decay 5e-4 under SGD", sample_run(signals=fade | {"decay[0]": 5e-4}, **sgd)),
            silent("near miss: it learns", sample_run(signals=strong, loss=falling(60), optimizer="SGD")),
            silent("near miss: the weights stay", sample_run(signals={"decay[0]": 1.0}, **sgd)),
            silent("near miss: no decay", sample_run(signals=fade | {"decay[0]": 0.0}, **sgd)),
        )


def _terms(trace: Trace) -> _Terms | None:
    decayed = tuple(t for t in weights(trace) if (s := trace.signal(f"decay[{t.group}]")) and s.high.max() > 0.0)
    at, norms = trace.matrix("weight/norm", decayed)
    if not decayed or not norms.size:
        return None
    wd, lr = (_per_tensor(trace, signal, decayed, at) for signal in ("decay", "lr"))
    decoupled = trace.settings.get("decoupled_weight_decay") is True or trace.optimizer.endswith(DECOUPLED)
    steps, others = trace.matrix("update/norm" if decoupled else "grad/norm", decayed)
    _, rows, kept = np.intersect1d(at, steps, return_indices=True)
    decay, size, weight = (wd * norms)[rows], _length(others[kept]), _length(norms[rows])
    if decoupled:
        decay = decay * lr[rows]
        own = _length(decay)
        size = np.sqrt(np.maximum(size**2 - own**2, 0.0))  # a step at right angles to the weights, as gradients are
    seen = np.isfinite(weight) & np.isfinite(size) & np.isfinite(_length(decay))
    return _Terms(_length(decay)[seen], size[seen], weight[seen], decoupled) if seen.any() else None


def _per_tensor(trace: Trace, signal: str, tensors: tuple[Tensor, ...], steps: np.ndarray) -> Floats:
    """[steps, tensors]: what the group of each tensor had."""
    columns = []
    for t in tensors:
        series = trace.signal(f"{signal}[{t.group}]")
        columns.append(np.interp(steps, series.steps, series.values) if series is not None else np.zeros(len(steps)))
    return np.stack(columns, axis=1)


def _length(block: Floats) -> Floats:
    return np.asarray(np.sqrt(np.nansum(block**2, axis=1)))
