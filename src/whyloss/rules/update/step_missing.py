"""step-missing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.order import by_step_line, thrown_away
from whyloss.core.progress import learned
from whyloss.core.reach import listed
from whyloss.core.run import Call, Facts, Pending, Run, Trace
from whyloss.core.sample import ORDER, flat, sample_run, sample_tensors
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class StepMissing(Rule):
    """Gradients are computed and no update follows, or most of them are thrown away before one does.

    ## What it detects
    Backward passes without any update, while an optimizer was built and no weight changed. Or a single optimizer that
    steps now and then, whose gradients are cleared after nearly every backward pass of the same line of code.
    ## Why it matters
    The weights stay as they are, or see only one in so many batches. Everything else in the loop looks right.
    ## What else looks like this
    Accumulation over many backward passes (nothing is cleared in between); attacks and sharpness-aware steps, which
    compute other gradients on a line of their own; saliency maps and gradient checks, which build no optimizer.
    ## What to do
    Call `optimizer.step()` (not only `scheduler.step()`), inside the loop, under a condition that comes true.
    """

    name = "step-missing"
    boundary = Boundary.UPDATE
    explains = ("loss-flat", "loss-at-baseline", "update-not-landing", "lr-too-low", "underfitting", "not-converged")
    change = "Call optimizer.step() after every backward pass, or after each window of accumulated ones."
    verify = "Run again: updates are counted, and the weights change."

    calls: int = threshold(16, unit="backward calls", why="a finished run; fewer could be a test of the graph")
    still: int = threshold(256, unit="backward calls", why="while a run goes on, a first accumulation may be long")
    looks: int = threshold(5, unit="looks", why="the same loss to the last bit at calls 1, 2, 4, 8 and 16")
    thrown: int = threshold(
        16,
        unit="backward calls",
        why="windows of accumulation have fewer; attacks and two-pass optimizers, one to three",
    )
    updates: int = threshold(3, unit="updates", why="the loop's order, not one statistic taken before an update")
    others: int = threshold(20, unit="updates", why="the first phase of a training in phases can be that short")
    windows: float = threshold(
        0.9, unit="of the updates", why="updates that a loss scaler leaves out drop some gradients"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        last = run.pending[-1] if run.pending and not run.updates else None
        if last is not None:
            yield self._never(run, last)
        elif (idle := self._idle(run)) is not None:
            yield idle
        elif len(same := by_step_line(run)) == 1:
            yield self._seldom(run, same[0])
        elif run.traces:
            yield self.passed(f"{len(run.traces)} optimizers took {run.updates} updates")
        else:
            yield self.skipped("no backward pass was seen")

    def _never(self, run: Run, last: Pending) -> Outcome:
        enough = self.calls if run.facts.end == "finished" else self.still
        if last.weights_changed:
            return self.passed(f"the weights changed in {last.backwards} backward calls, without an optimizer")
        if last.backwards < enough:
            return self.skipped(f"needs {enough} backward calls without an update; {last.backwards} were seen")
        built, looks = len(run.facts.optimizers_built), [p.loss for p in run.pending]
        constant = len(looks) >= self.looks and len(set(looks)) == 1
        return self.finding(
            f"{last.backwards} backward passes and no update: "
            + (f"none of {built} optimizers took a step" if built else "no optimizer was built")
            + (", no weight has changed, and neither has the loss" if constant else ", and no weight has changed"),
            Evidence("backward calls without an update", last.backwards, enough, "calls"),
            Evidence("updates", 0, "above 0", "updates"),
            severity=Severity.ERROR if built else Severity.WARNING if constant else Severity.INFO,
            place=next((p.place for p in reversed(run.pending) if p.place.file), last.place),
            certain=built > 0,
        )

    def _seldom(self, run: Run, traces: tuple[Trace, ...]) -> Outcome:
        lost, trace = thrown_away(*traces), traces[0]
        few = run.updates < self.updates
        if few or lost is None or lost.gradients < self.thrown or lost.share < self.windows:
            return self.passed(f"{trace.optimizer} took {run.updates} updates, one a window of backward passes")
        return self.finding(
            f"{trace.optimizer} takes one update in {lost.gradients + 1} backward passes; the gradients of the "
            f"{lost.gradients} before it are cleared unused",
            Evidence("gradients cleared before an update", lost.gradients, 0, "backward calls", (0, run.updates - 1)),
            Evidence("updates like that", lost.share, None, "of all"),
            severity=Severity.INFO if learned(trace) else Severity.WARNING,
            place=trace.step_place,
            change="Call optimizer.step() after every backward pass, or clear the gradients only after a step.",
            verify="Run again: as many gradients are used as are computed.",
        )

    def _idle(self, run: Run) -> Outcome | None:
        """An optimizer that never steps, while the losses that others step on reach its tensors."""
        held = {t.key for trace in run.traces for t in trace.trained}
        for idle in run.idle if run.over and run.updates >= self.others else ():
            waiting = tuple(t for t in idle.trained if t.in_graph and t.key not in held)
            if waiting:
                return self.finding(
                    f"{idle.optimizer} never takes a step while others take {run.updates}: "
                    f"{listed(waiting)}, which the loss reaches, are never updated",
                    Evidence("its updates", 0, "above 0", "updates", (0, run.updates - 1)),
                    Evidence("tensors that only it holds", len(waiting), 0, "tensors"),
                    severity=Severity.ERROR,
                    place=replace(idle.place_of(waiting[0]), **_line(idle.place)),
                    certain=True,
                    change=f"Call step() on the {idle.optimizer} that holds {waiting[0].name}, too.",
                )
        return None

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        built = (Place(file="train.py", line=15),)
        ended, going = Facts(optimizers_built=built, end="finished"), Facts(optimizers_built=built)
        some, many = (Pending(backwards=n, loss=2.3, weights_changed=False) for n in (90, 4096))
        same = tuple(replace(some, backwards=2**i) for i in range(7))
        order = (*ORDER[:2] * 8, ORDER[2])
        seldom = sample_run(loss=flat(60), order=order, signals={"backwards": 40.0})
        by_hand = {"backwards": 40.0, "grad/summed": 2.0, "grad/total": 0.3}
        short = sample_run(1, order=order, signals={"backwards": 40.0}).traces
        attack = (*(ORDER[0], Call("backward", "attack.py", 7)) * 7, *ORDER)
        return (
            fires("90 backward passes, then the end", Run(pending=(some,), facts=ended), Severity.ERROR),
            fires("4096 backward passes and going on", Run(pending=(many,), facts=going), Severity.ERROR),
            fires("one step in forty passes, all cleared", seldom, Severity.WARNING),
            fires("an optimizer built anew each round", replace(seldom, traces=short * 5), Severity.WARNING),
            silent("near miss: one update after forty passes", replace(seldom, traces=short)),
            silent("near miss: gradients summed up by hand", sample_run(loss=flat(60), order=order, signals=by_hand)),
            fires("one of two optimizers never steps", _waiting(True), Severity.ERROR),
            silent("near miss: an optimizer for a later phase", _waiting(False)),
            silent("near miss: cleared within a window of four", sample_run(order=(*ORDER[:2] * 4, ORDER[2]))),
            fires("weights rebound by hand", Run(pending=same, facts=Facts(end="finished")), Severity.WARNING),
            silent("near miss: the first window of a long accumulation", Run(pending=(some,), facts=going)),
            silent(
                "near miss: weights updated by hand", Run(pending=(replace(many, weights_changed=True),), facts=ended)
            ),
            silent("near miss: saliency maps, no optimizer", Run(pending=(many,), facts=Facts(end="finished"))),
            silent("near miss: gradients left after the last update", sample_run(pending=(some,), facts=ended)),
            silent(
                "near miss: accumulation over eight passes", sample_run(order=(ORDER[0], *ORDER[1:2] * 8, ORDER[2]))
            ),
            silent("near miss: seven attack gradients an update", sample_run(loss=flat(60), order=attack)),
            silent(
                "near miss: a closure evaluated eight times within a step",
                sample_run(loss=flat(60), order=(ORDER[2], *ORDER[:2] * 8)),
            ),
            silent(
                "near miss: sharpness-aware, two passes an update", sample_run(loss=flat(60), order=ORDER[:2] + ORDER)
            ),
        )


def _line(place: Place) -> dict[str, Any]:
    return {"file": place.file, "line": place.line, "source": place.source}


def _waiting(reached: bool) -> Run:
    """A second optimizer, built and never stepped."""
    tensors = tuple(replace(t, key=t.key + 50, in_graph=reached) for t in sample_tensors())
    idle = Trace(index=1, optimizer="Adam", place=Place(file="train.py", line=16), tensors=tensors)
    return replace(sample_run(), idle=(idle,))
