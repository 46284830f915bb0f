"""step-missing."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.progress import learned
from whyloss.core.run import Call, Facts, Pending, Run, Trace
from whyloss.core.sample import ORDER, flat, sample_run
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

    calls: int = threshold(
        16, unit="backward calls", why="a finished run without one update; fewer could be a test of the graph"
    )
    still: int = threshold(
        256, unit="backward calls", why="while a run goes on, the first accumulation window may be long"
    )
    thrown: int = threshold(
        4, unit="backward calls", why="attacks and two-pass optimizers drop one to three on the same line"
    )
    windows: float = threshold(
        0.9, unit="of the updates", why="updates that a loss scaler leaves out drop gradients now and then"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        last = run.pending[-1] if run.pending and not run.updates else None
        if last is not None:
            yield self._never(run, last)
        elif len(run.traces) == 1:
            yield self._seldom(run.traces[0])
        elif run.traces:
            yield self.passed(f"{len(run.traces)} optimizers took {run.updates} updates")
        else:
            yield self.skipped("no backward pass was seen")

    def _never(self, run: Run, last: Pending) -> Outcome:
        enough = self.calls if run.facts.end == "finished" else self.still
        if last.weights_changed:
            return self.passed(
                f"the weights changed within {last.backwards} backward calls, by other means than an optimizer"
            )
        if last.backwards < enough:
            return self.skipped(f"needs {enough} backward calls without an update; {last.backwards} were seen")
        built = len(run.facts.optimizers_built)
        return self.finding(
            f"{last.backwards} backward passes and no update: "
            + (f"none of {built} optimizers took a step" if built else "no optimizer was built")
            + ", and no weight has changed",
            Evidence("backward calls without an update", last.backwards, enough, "calls"),
            Evidence("updates", 0, "above 0", "updates"),
            severity=Severity.ERROR if built else Severity.INFO,
            place=next((p.place for p in reversed(run.pending) if p.place.file), last.place),
            certain=built > 0,
        )

    def _seldom(self, trace: Trace) -> Outcome:
        index, counts = trace.signal("order"), [_thrown(order) for order in trace.orders]
        if index is None or not counts:
            return self.skipped("the order of calls was not seen")
        seen = [counts[int(i)] if 0 <= i < len(counts) else 0 for i in index.finite.values]
        often = sum(n >= self.thrown for n in seen)
        if not seen or often < self.windows * len(seen):
            return self.passed(
                f"{trace.optimizer} took {trace.updates} updates, one for each window of backward passes"
            )
        return self._thrown_away(trace, sorted(seen)[len(seen) // 2], often)

    def _thrown_away(self, trace: Trace, thrown: int, often: int) -> Finding:
        backwards = trace.signal("backwards")
        passes = float(backwards.values.mean()) if backwards is not None else thrown + 1.0
        call = next(c for c in max(trace.orders, key=_thrown) if c.what == "backward")
        return self.finding(
            f"{trace.optimizer} takes one update in {passes:.3g} backwards; {thrown} gradients are cleared first",
            Evidence("gradients cleared before an update", thrown, 0, "backward calls", (0, trace.updates - 1)),
            Evidence("updates like that", often, None, f"of {trace.updates}"),
            severity=Severity.INFO if learned(trace) else Severity.WARNING,
            place=Place(op="backward", file=call.file, line=call.line),
            change="Call optimizer.step() after every backward pass, or clear the gradients only after a step.",
            verify="Run again: as many gradients are used as are computed.",
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        built = (Place(file="train.py", line=15),)
        ended, going = Facts(optimizers_built=built, end="finished"), Facts(optimizers_built=built)
        some, many = (
            Pending(backwards=90, loss=2.3, weights_changed=False),
            Pending(backwards=4096, loss=2.3, weights_changed=False),
        )
        one_in_eight = (*ORDER[:2] * 8, ORDER[2])
        attack = (*(ORDER[0], Call("backward", "attack.py", 7)) * 7, *ORDER)
        return (
            fires("90 backward passes, then the end", Run(pending=(some,), facts=ended), Severity.ERROR),
            fires("4096 backward passes and going on", Run(pending=(many,), facts=going), Severity.ERROR),
            fires(
                "cleared in each of eight passes, one step",
                sample_run(loss=flat(60), order=one_in_eight),
                Severity.WARNING,
            ),
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


def _thrown(order: tuple[Call, ...]) -> int:
    """Backward calls whose gradients were cleared before the step, of the line whose gradients the step used."""
    names = [c.what for c in order]
    order = order[: names.index("step")] if "step" in names else order  # a closure runs within the step
    lines = [(c.file, c.line) for c in order if c.what == "backward"]
    if not lines:
        return 0
    count, since = 0, 0
    for call in order:
        if call.what == "zero_grad":
            count, since = count + since, 0
        elif call.what == "backward":
            since += (call.file, call.line) == lines[-1]
    return count
