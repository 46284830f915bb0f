"""update-lost-to-precision."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.precision import Step, step_of
from whyloss.core.progress import learned
from whyloss.core.reach import listed, values
from whyloss.core.run import Tensor, Trace
from whyloss.core.sample import flat, sample_run, sample_tensors
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

HALF = ("bfloat16", "float16")


@dataclass(frozen=True)
class _Lost:
    tensor: Tensor
    held: float
    step: Step


@dataclass(frozen=True)
class UpdateLostToPrecision(Rule):
    """The updates are too small for the numbers that the weights are kept in: rounding takes them away.

    ## What it detects
    Most values of a weight have the bits they began with, though gradients pulled at them again and again; the step
    that rate and optimizer make is below half of the distance to the next number, and all steps together would have
    gone past several of them.
    ## Why it matters
    The weights stand still although gradients, rate and optimizer are sane: the same settings learn in float32.
    ## What else looks like this
    A rate so low that the weights would get nowhere in float32 either; rows of an embedding that are not in the batch,
    pruned and zero values; master weights, which are the ones that are looked at. None is reported. A run that learns
    by its other weights is an info.
    ## What to do
    Keep the weights in float32 and compute under `torch.autocast`; or keep master weights.
    """

    name = "update-lost-to-precision"
    boundary = Boundary.UPDATE
    explains = (
        *("lr-too-low", "update-not-landing", "loss-flat", "loss-at-baseline", "plateau-high", "underfitting"),
        "not-converged",
    )
    change = "Keep the weights in float32 and compute in half precision under torch.autocast."
    verify = "Run again: weight/held is near 0 after some tens of updates."

    held: float = threshold(
        0.5, unit="of the values", why="0.98 at a rate of 1e-5 and 0.8 at 1e-4 in bfloat16, where nothing was learned"
    )
    way: float = threshold(2.0, unit="distances", why="a shorter way ends at the same number in exact arithmetic, too")
    moved: float = threshold(
        1e-3, unit="of a value", why="less than that would change nothing in float32; large values apart, under Adam"
    )
    main: float = threshold(0.5, unit="of the trained values", why="float32 loses single values in any healthy run")
    updates: int = threshold(20, unit="updates", why="before that a curve says nothing of what it did")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        looked = [t for t in trace.trained if trace.signal(f"weight/held[{t.name}]") is not None]
        if not looked or trace.updates < self.updates:
            yield self.skipped(f"needs {self.updates} updates, and gradients other than 0 at three looks")
            return
        lost = [found for t in looked if (found := self._lost(trace, t)) is not None]
        share = values(f.tensor for f in lost) / max(values(trace.trained), 1)
        lost = [f for f in lost if f.tensor.dtype in HALF or share >= self.main]
        if not lost or not any(len(f.tensor.shape) > 1 for f in lost):
            worst = max(trace.signal(f"weight/held[{t.name}]").last for t in looked)  # type: ignore[union-attr]
            yield self.passed(f"{1 - worst:.0%} of the values of each weight and more moved, or had no need to")
            return
        yield self._found(trace, lost, share)

    def _lost(self, trace: Trace, t: Tensor) -> _Lost | None:
        held = trace.signal(f"weight/held[{t.name}]")
        step = step_of(trace, t) if held is not None and held.last >= self.held else None
        if held is None or step is None or not 0.0 < step.typical < step.half:
            return None
        enough = step.relative >= self.moved or (t.dtype not in HALF and trace.optimizer != "SGD")
        return _Lost(t, held.last, step) if step.way >= self.way and enough else None

    def _found(self, trace: Trace, lost: list[_Lost], share: float) -> Outcome:
        worst = max(lost, key=lambda f: f.tensor.size)
        t, step = worst.tensor, worst.step
        held = float(np.average([f.held for f in lost], weights=[f.tensor.size for f in lost]))
        suffers = ends_poorly(trace) or learned(trace) is False
        wide = "Shift and scale what these values stand for to near 0 and 1."
        return self.finding(
            f"rounding takes the updates of {listed([f.tensor for f in lost])} away: {held:.0%} of their values in "
            f"{t.dtype} have never changed in {trace.updates} updates with gradients"
            + ("" if suffers else "; the run learns all the same"),
            Evidence("values that never changed", held, self.held, "of those with a gradient"),
            Evidence(f"step of a typical value of {t.name}", step.typical, step.half, "half a distance"),
            Evidence("way of all steps together", step.way, self.way, "distances", (0, trace.updates - 1)),
            Evidence("trained values concerned", share, None, "of all"),
            severity=Severity.WARNING if suffers else Severity.INFO,
            place=trace.place_of(t),
            change=self.change if t.dtype in HALF else wide,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [t.name for t in sample_tensors()]
        half = {n: {"dtype": "bfloat16"} for n in names}
        held = {f"weight/held[{n}]": 0.97 for n in names}
        low = held | {"lr[0]": 1e-5}
        long: dict[str, Any] = {"loss": flat(400), "changed": half}
        large = {n: {"shape": (1000, 64)} for n in names[:1]}
        giant = {f"weight/norm[{names[0]}]": 1e9, f"weight/held[{names[0]}]": 1.0}
        vector = {f"weight/held[{names[1]}]": 1.0, f"weight/norm[{names[1]}]": 5.7, "lr[0]": 1e-5}
        return (
            fires("bfloat16 at a rate of 1e-5", sample_run(signals=low, **long), Severity.WARNING),
            fires(
                "float32 values of 4e6 under Adam",
                sample_run(loss=flat(4000), signals=giant, changed=large),
                Severity.WARNING,
            ),
            silent("near miss: it learns all the same", sample_run(400, signals=low, changed=half)),
            silent("near miss: bfloat16 at 1e-3", sample_run(signals=held | {"lr[0]": 1e-3}, **long)),
            silent("near miss: a rate of 1e-9", sample_run(signals=held | {"lr[0]": 1e-9}, **long)),
            silent("near miss: the values moved", sample_run(signals=low | dict.fromkeys(held, 0.01), **long)),
            silent("near miss: a vector of norms", sample_run(signals=vector, **long)),
            silent("near miss: float32", sample_run(loss=flat(400), signals=low)),
            silent("near miss: an optimizer of another kind", sample_run(signals=low, optimizer="Prodigy", **long)),
        )
