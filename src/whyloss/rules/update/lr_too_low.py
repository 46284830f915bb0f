"""lr-too-low."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.clipping import unclipped
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.initialisation import untrained
from whyloss.core.levels import baselines, own_loss, says_nothing
from whyloss.core.movement import rates, ratios, travelled, warming, weights
from whyloss.core.progress import learned
from whyloss.core.run import Run, Tensor, Trace
from whyloss.core.sample import falling, flat, sample_run, sample_tensors
from whyloss.core.series import absent
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LrTooLow(Rule):
    """The updates are so small that the weights cannot get anywhere in this run.

    ## What it detects
    The true updates ‖Δθ‖ / ‖θ‖, added up over all updates of the run, come to less than `travel` for the middle weight,
    although its gradient is there, on a model that has nothing learned yet, and the loss has not fallen by a tenth.
    ## Why it matters
    Everything works, a thousand times too slowly. The loss falls steadily in its last digits.
    ## What else looks like this
    Fine-tuning at 1e-6: it begins below the loss of a constant prediction, or with weights that no longer look like an
    initialisation. A warm-up that is still rising. A rate of exactly 0 (lr-zero). Gradients that are zero, that vanish
    under SGD, or that are clipped away: then the rate is not the reason, and their own causes are reported.
    ## What to do
    Raise the rate tenfold, and again, until the loss falls: 1e-3 for Adam and 1e-1 to 1e-2 for SGD are where to begin.
    Look at the schedule: one that is stepped at every batch though it was meant for epochs ends at nothing.
    """

    name = "lr-too-low"
    boundary = Boundary.UPDATE
    explains = ("loss-flat", "loss-at-baseline", "underfitting", "not-converged")
    explained_by = ("vanishing-gradient", "zero-gradient", "clip-too-small", "lr-schedule-collapsed", "lr-zero")
    change = "Raise the rate tenfold, and again, until the loss falls; check how often the scheduler is stepped."
    verify = "Run again: update/norm is near a thousandth of weight/norm, and the loss falls."

    updates: int = threshold(50, unit="updates", why="the loss and the warm-up of shorter runs say too little")
    travel: float = threshold(0.05, unit="of a weight's norm", why="fresh networks that learned moved by 0.09 and more")
    good: float = threshold(0.8, unit="of a baseline", why="a fifth below the best constant prediction took learning")
    faint: float = threshold(1e-3, unit="‖g‖ / ‖θ‖", why="fresh networks gave 0.01 and more, deep sigmoid stacks 1e-5")
    clipped: float = threshold(0.01, unit="of the gradient", why="less of it left, and clipping is the reason")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            moving = _with_gradient(trace)
            ratio = ratios(trace, moving) if moving else None
            reason = says_nothing(run, trace)
            if reason or ratio is None or trace.updates < self.updates:
                why = f"needs {self.updates} updates, their norms, and gradients above 0 in most weights"
                yield self.skipped(reason or why)
                continue
            way = travelled(trace, ratio)
            about = (
                f"over {trace.updates} updates the middle weight could move by at most {100 * way:.2g} % of its norm"
            )
            excuse = "far enough" if way >= self.travel else "not at all" if way == 0.0 else self._excuse(trace, moving)
            if excuse:
                yield self.passed(f"{about}: {excuse}")
                continue
            yield self.finding(
                f"{about}: {_rates(trace)} of {trace.optimizer} is too small to move it",
                Evidence("sum of ‖Δθ‖ / ‖θ‖ over the run", way, self.travel, "of the norm", (0, trace.updates - 1)),
                Evidence("middle ‖Δθ‖ / ‖θ‖ of an update", float(np.median(ratio.values)), 1e-3),
                severity=Severity.WARNING,
                place=trace.place,
            )

    def _excuse(self, trace: Trace, moving: tuple[Tensor, ...]) -> str:
        """Why small updates are right here, or not the fault of the rate."""
        if learned(trace) is not False:
            return "the loss fell, or was not finite"
        if warming(trace):
            return "the rate was still rising"
        if self._clipped_away(trace) or self._faint(trace, moving):
            return "the gradient itself is that small against the weights"
        return "the model had learned before" if self._good_start(trace) else ""

    def _good_start(self, trace: Trace) -> bool:
        own, levels = own_loss(trace), baselines(trace)
        if own is not None and levels and len(own.finite):
            return float(np.median(own.finite.values[:3])) < self.good * levels[-1].value
        return untrained(trace.trained) is not True

    def _faint(self, trace: Trace, moving: tuple[Tensor, ...]) -> bool:
        """Under SGD the update is as small as the gradient: that itself is tiny against the weight."""
        relative = ratios(trace, moving, "grad/norm")
        return "SGD" in trace.optimizer and relative is not None and float(np.median(relative.values)) < self.faint

    def _clipped_away(self, trace: Trace) -> bool:
        given, before = trace.signal("grad/total"), unclipped(trace)
        if given is None or before is None or len(given) != len(before):
            return False
        return bool(np.median(given.values) < self.clipped * np.median(before.values))

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        small = {f"update/norm[{t.name}]": 1e-7 for t in sample_tensors()}
        none = {f"grad/norm[{t.name}]": 0.0 for t in sample_tensors()}
        faint = {f"grad/norm[{t.name}]": 1e-6 for t in sample_tensors()}
        clip = {"clip/norm": 0.5, "clip/limit": 1e-6, "grad/total": 1e-6}
        tuned = tuple(replace(t, largest=(t.std or 0.1) * 6) for t in sample_tensors())
        still, rising = flat(200), {"lr[0]": np.linspace(0.0, 1e-3, 200)}
        return (
            fires("updates of 1e-7 at ln 10", sample_run(loss=still, signals=small), Severity.WARNING),
            fires("slow and steady", sample_run(loss=np.linspace(2.33, 2.31, 300), signals=small)),
            fires("a loss written by hand, on fresh weights", sample_run(loss=still, objectives=(), signals=small)),
            silent("near miss: fine-tuning that begins at 0.1", sample_run(loss=flat(200, 0.1), signals=small)),
            silent(
                "near miss: a loss written by hand, on trained weights",
                sample_run(loss=still, objectives=(), tensors=tuned, signals=small),
            ),
            silent("near miss: the warm-up still rises", sample_run(loss=still, signals=small | rising)),
            silent("near miss: the gradients are zero", sample_run(loss=still, signals=small | none)),
            silent("near miss: clipped away", sample_run(loss=still, signals=small | clip)),
            silent("near miss: small updates, and it learns", sample_run(loss=falling(200), signals=small)),
            silent("near miss: flat at a customary rate", sample_run(loss=still)),
            silent(
                "near miss: the gradients vanish under SGD",
                sample_run(loss=still, signals=small | faint, optimizer="SGD"),
            ),
            silent("near miss: 30 updates", sample_run(loss=flat(30), signals=small)),
        )


def _with_gradient(trace: Trace) -> tuple[Tensor, ...]:
    """The weights whose gradient is above 0 at most updates; none where they are the minority."""
    held = weights(trace)
    _, norms = trace.matrix("grad/norm", held)
    if not norms.size:
        return ()
    alive = ((norms > 0.0) & ~absent(norms)).mean(axis=0) > 0.5
    return tuple(t for t, a in zip(held, alive, strict=True) if a) if 2 * alive.sum() > len(held) else ()


def _rates(trace: Trace) -> str:
    seen = rates(trace)
    if not seen:
        return "the rate"
    low, high = min(r.low.min() for r in seen), max(r.high.max() for r in seen)
    return f"the rate {high:.3g}" if low == high else f"the rate, {low:.3g} to {high:.3g},"
