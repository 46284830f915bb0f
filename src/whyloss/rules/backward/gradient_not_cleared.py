"""gradient-not-cleared."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.progress import learned
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat, sample_run, sample_tensors
from whyloss.core.series import NOT_OBSERVED, Series
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class GradientNotCleared(Rule):
    """Every update is made with the gradients of all earlier ones on top of its own.

    ## What it detects
    When the first backward pass of an update began, the gradients of the update before were still there, and nothing
    cleared them until the step: at every observed update, or at `often` of them and more.
    ## Why it matters
    The sum of all past gradients acts like a momentum that is never damped: the weights overshoot, swing and diverge.
    ## What else looks like this
    Accumulation over several backward passes before one step, cleared after it: nothing is left over, so nothing is
    reported. Gradients that are cleared every few updates are reported only where the run does not learn.
    ## What to do
    Call `optimizer.zero_grad()` once an update, before backward. With several optimizers: each its own.
    """

    name = "gradient-not-cleared"
    boundary = Boundary.BACKWARD
    explains = (
        *("loss-diverging", "loss-nonfinite", "loss-flat", "loss-at-baseline", "loss-oscillating", "loss-spikes"),
        *("loss-noisy", "plateau-high", "underfitting", "exploding-gradient", "gradient-overflow", "nonfinite-forward"),
        *("nonfinite-backward", "lr-too-high", "dead-relu", "saturated-activation", "activation-explosion"),
        "clip-too-small",
    )
    change = "Call optimizer.zero_grad() before the backward pass of every update."
    verify = "Run again: grad/leftover is 0 at every update, and the loss falls."

    first: int = threshold(2, unit="updates", why="the second and the third in a row show that the loop clears nothing")
    often: float = threshold(
        0.9, unit="of the updates", why="clearing once an epoch leaves all but one in ten and more"
    )
    seldom: float = threshold(0.5, unit="of the updates", why="below half, most updates have their own gradients only")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        left = trace.signal("grad/leftover")
        if left is None or len(left.finite) < self.first:
            yield self.skipped(f"needs {self.first} updates after the first with a look at what was left over")
            return
        if _set_by_hand(trace):
            yield self.passed("no loss adds to the gradients of these tensors: they are set anew by hand")
            return
        share = float(np.mean(left.finite.low > 0.0))
        severity = self._severity(trace, share)
        if severity is None:
            yield self.passed(f"gradients were left over at {share:.0%} of {len(left)} updates")
            return
        yield self._found(trace, left, share, severity)

    def _severity(self, trace: Trace, share: float) -> Severity | None:
        learns = learned(trace)
        if share >= self.often:
            return Severity.WARNING if learns else Severity.ERROR
        if share < self.seldom or learns is None:
            return None
        return Severity.INFO if learns else Severity.WARNING

    def _found(self, trace: Trace, left: Series, share: float, severity: Severity) -> Finding:
        kept = left.finite
        step, norm = int(kept.steps[-1]), kept.last
        given, before = _at(trace, step), _at(trace, step - 1)
        how = "any of" if share == 1.0 else f"{share:.0%} of"
        again = f"norm {norm:.3g} was left when the backward pass of update {step} began"
        return self.finding(
            f"gradients are not cleared before {how} {len(kept)} observed updates of {trace.optimizer}: {again}"
            + (f", and the step was taken with {given:.3g}" if given else ""),
            Evidence(
                "share of observed updates that began with old gradients", share, 0.0, "", (int(kept.steps[0]), step)
            ),
            Evidence("norm of the old gradients", norm, 0.0, "", (step,)),
            *([Evidence("norm given to the update before", before, None, "", (step - 1,))] if before else []),
            severity=severity,
            place=trace.step_place,
            first_step=int(kept.steps[kept.low > 0.0][0]),
            certain=share >= self.often,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def every(n: int, period: int) -> np.ndarray:
            left = np.where(np.arange(n) % period == 0, 0.0, 3.0)
            left[0] = NOT_OBSERVED
            return left

        return (
            fires("never cleared", sample_run(loss=flat(60), signals={"grad/leftover": 3.0}), Severity.ERROR),
            fires("seen at the third update", sample_run(3, signals={"grad/leftover": every(3, 9)}), Severity.ERROR),
            fires(
                "cleared once an epoch of 99 batches",
                sample_run(loss=flat(200), signals={"grad/leftover": every(200, 99)}),
                Severity.ERROR,
            ),
            fires("never cleared, and it learns", sample_run(signals={"grad/leftover": 3.0}), Severity.WARNING),
            fires(
                "cleared once an epoch of six batches, and it does not learn",
                sample_run(loss=flat(60), signals={"grad/leftover": every(60, 6)}),
                Severity.WARNING,
            ),
            silent(
                "near miss: cleared every fourth update, and it learns",
                sample_run(loss=falling(60), signals={"grad/leftover": every(60, 4)}),
            ),
            silent(
                "near miss: one update with what a check before the loop had left",
                sample_run(loss=flat(60), signals={"grad/leftover": np.where(np.arange(60) == 1, 3.0, 0.0)}),
            ),
            silent("near miss: master weights that are handed gradients", _master()),
            silent("near miss: accumulation of four backward passes a step", sample_run(signals={"backwards": 4.0})),
        )


def _set_by_hand(trace: Trace) -> bool:
    """The losses reach other tensors and none of the optimizer's: copies that are handed the gradients of a model."""
    return all(t.in_graph is False for t in trace.trained) and any(t.in_graph for t in trace.tensors)


def _at(trace: Trace, step: int) -> float | None:
    """The norm that the optimizer was given at a step."""
    total = trace.signal("grad/total")
    found = total.values[total.steps == step] if total is not None else np.zeros(0)
    return float(found[0]) if len(found) and np.isfinite(found[0]) else None


def _master() -> Run:
    own = [replace(t, key=t.key + 100, name=f"model.{t.name}", in_optimizer=False) for t in sample_tensors()]
    copies = [replace(t, in_graph=False) for t in sample_tensors()]
    return sample_run(loss=flat(60), tensors=[*copies, *own], signals={"grad/leftover": 3.0})
