"""gradient-cleared-early."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.order import by_step_line, thrown_away
from whyloss.core.reach import moved
from whyloss.core.run import Call, Run, Trace
from whyloss.core.sample import ORDER, flat, sample_run, sample_tensors
from whyloss.core.series import ABSENT, absent
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class GradientClearedEarly(Rule):
    """The gradients are cleared between backward and step, so the optimizer is given none.

    ## What it detects
    No trained tensor had a gradient other than None or 0 at any step, and either zero_grad() was called after the last
    backward pass of every update, or the loss does reach the tensors (so somebody set their gradients to None by hand).
    ## Why it matters
    The step runs on nothing: no weight learns, though the loss, the backward pass and the optimizer all look right.
    ## What else looks like this
    zero_grad() at the end of the loop, after the step; zero_grad() of another optimizer in between, which leaves this
    one's gradients alone; optimizers that compute their gradients inside step(). None of these is reported.
    ## What to do
    Keep the order zero_grad, backward, step.
    """

    name = "gradient-cleared-early"
    boundary = Boundary.BACKWARD
    explains = (
        *("zero-gradient", "detached-parameters", "unused-parameters", "vanishing-gradient", "weight-decay-dominates"),
        *("update-not-landing", "lr-too-low", "loss-flat", "loss-at-baseline", "plateau-high", "underfitting"),
    )
    change = "Move zero_grad() before backward(), or after step()."
    verify = "Run again: grad/total is above 0 at the step."

    updates: int = threshold(
        3, unit="updates", why="three steps on nothing in a row are the loop's order, not an accident"
    )

    window: int = threshold(
        16, unit="passes", why="windows of accumulation; a longer one is a step under a condition that is seldom true"
    )
    always: float = threshold(0.9, unit="of the updates", why="the loop's own order; the last window may be short")

    def check(self, run: Run) -> Iterator[Outcome]:
        for traces in by_step_line(run):
            short = all(trace.updates < self.updates for trace in traces) and len(traces) >= self.updates
            found = self._within(*traces) if short else None
            yield from [found] if found else [o for trace in traces for o in self.check_trace(trace)]

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        _, grads = trace.matrix("grad/norm", trace.trained)
        nothing = (absent(grads) | (grads == 0.0)).all(axis=1) if grads.size else np.zeros(0, dtype=bool)
        if len(nothing) < self.updates:
            yield self.skipped(f"needs the gradients of {self.updates} updates")
            return
        cleared = _cleared_after_backward(trace)
        by_hand = bool(absent(grads).all()) and all(t.in_graph is True for t in trace.trained)
        inside = bool(absent(grads).all()) and bool(
            moved(trace, trace.trained)
        )  # an optimizer skips what has no gradient
        if not nothing.all() or inside or not (cleared or by_hand):
            yield self._within(trace) or self.passed(
                f"the optimizer was given gradients at {int((~nothing).sum())} of {len(nothing)} updates"
            )
            return
        call = cleared or Call("by hand")
        what = (
            "zero_grad() runs between backward and step"
            if cleared
            else "they are set to None between backward and step"
        )
        yield self.finding(
            f"{trace.optimizer} was given no gradient at any of {len(nothing)} updates: {what}",
            Evidence("largest gradient at a step", 0.0, "above 0", "", (0, trace.updates - 1)),
            Evidence("order of calls", " → ".join(c.what for c in trace.orders[0]) if trace.orders else "not seen"),
            severity=Severity.ERROR,
            place=call.place if cleared else trace.step_place,
            certain=True,
        )

    def _within(self, *traces: Trace) -> Outcome | None:
        """Accumulation whose zero_grad() stands in the inner loop: all but the last backward pass is for nothing."""
        lost, trace = thrown_away(*traces), traces[0]
        if lost is None or not 2 <= lost.gradients < self.window or lost.share < self.always:
            return None
        return self.finding(
            f"each update of {trace.optimizer} uses one of {lost.gradients + 1} backward passes: "
            f"zero_grad() clears the {lost.gradients} before it",
            Evidence(
                "gradients cleared before an update", lost.gradients, 0, "backward passes", (0, trace.updates - 1)
            ),
            Evidence("updates like that", lost.share, None, "of all"),
            severity=Severity.WARNING,
            place=lost.clear.place,
            certain=True,
            change="Call zero_grad() once an update, not before every backward pass of it.",
            verify="Run again: no zero_grad stands between two backward passes of one update.",
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        early = (ORDER[1], Call("zero_grad", "train.py", 22), ORDER[2])
        clipped = (ORDER[1], Call("clip_norm", "train.py", 22), Call("zero_grad", "train.py", 23), ORDER[2])
        late = (Call("zero_grad", "train.py", 24), *ORDER[1:])
        names = [t.name for t in sample_tensors()]
        none = {f"grad/norm[{n}]": ABSENT for n in names}
        zero = {f"grad/norm[{n}]": 0.0 for n in names} | {"grad/total": 0.0}
        unreached = {n: {"in_graph": False} for n in names}
        four = (*ORDER[:2] * 4, ORDER[2])
        short = sample_run(1, order=four)
        return (
            fires("cleared within a window of four", sample_run(order=four), Severity.WARNING),
            fires("an optimizer built anew each round", replace(short, traces=short.traces * 5), Severity.WARNING),
            silent("near miss: one update after four passes", short),
            silent(
                "near miss: each example's gradient is clipped and summed up by hand, as for differential privacy",
                sample_run(order=four, signals={"backwards": 4.0, "grad/summed": 2.0, "grad/total": 0.3}),
            ),
            silent("near miss: two passes an update, sharpness-aware", sample_run(order=ORDER[:2] + ORDER)),
            silent("near miss: accumulation of four", sample_run(order=(ORDER[0], *ORDER[1:2] * 4, ORDER[2]))),
            fires("zero_grad before step", sample_run(loss=flat(60), order=early, signals=none), Severity.ERROR),
            fires("filled with zeros, after clipping", sample_run(3, order=clipped, signals=zero), Severity.ERROR),
            fires("set to None by hand", sample_run(loss=flat(60), signals=none), Severity.ERROR),
            silent("near miss: zero_grad after step", sample_run(order=late)),
            silent("near miss: another optimizer's zero_grad in between", sample_run(order=early)),
            silent(
                "near miss: cleared early at every other update", sample_run(order=early, signals=_alternating(names))
            ),
            silent("near miss: the loss reaches nothing", sample_run(loss=flat(60), signals=none, changed=unreached)),
            silent("near miss: gradients of dead units are 0", sample_run(loss=flat(60), signals=zero)),
            silent("near miss: gradients computed inside step()", sample_run(signals=none | _moving(names))),
        )


def _cleared_after_backward(trace: Trace) -> Call | None:
    """The zero_grad() between the last backward and the step, where every sequence of calls has one."""
    found = [_after_backward(order) for order in trace.orders if any(c.what == "backward" for c in order)]
    return found[0] if found and all(found) else None


def _after_backward(order: tuple[Call, ...]) -> Call | None:
    names = [c.what for c in order]
    end = len(names) - 1 - names[::-1].index("step") if "step" in names else len(names)
    last = max((i for i, n in enumerate(names[:end]) if n == "backward"), default=None)
    if last is None:
        return None
    return next((c for c in order[last:end] if c.what == "zero_grad"), None)


def _alternating(names: list[str]) -> dict[str, np.ndarray]:
    return {f"grad/norm[{n}]": np.where(np.arange(200) % 2 == 0, ABSENT, 0.1) for n in names}


def _moving(names: list[str]) -> dict[str, np.ndarray]:
    return {f"weight/norm[{n}]": np.linspace(1.0, 2.0, 200) for n in names}
