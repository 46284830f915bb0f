"""loss-flat."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.initialisation import untrained
from whyloss.core.levels import baselines, own_loss, says_nothing
from whyloss.core.progress import ERRORS, SHARE, fell
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, flat, sample_run, sample_tensors
from whyloss.core.series import fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossFlat(Rule):
    """The training loss has not moved beyond its own noise since the first update.

    ## What it detects
    Over at least `updates` updates, the median of the last tenth lies within `errors` standard errors (or within
    `share`) of the median of the first tenth, and no stretch in between was lower.
    ## Why it matters
    Nothing was learned. It says that, not why: the rate, the gradients, the data and the loss can each be the reason.
    ## What else looks like this
    A loss printed with too few digits (the stored values are compared, in full precision); a run that started at a good
    minimum (fine-tuning, a resumed run): it starts below the loss of a constant prediction, or its weights no longer
    look like an initialisation; two optimizers that play against each other; policy-gradient losses, which take both
    signs; a task that is solved in the first few updates. None of them is reported.
    ## What to do
    Look at the causes that could explain it, in the order of the report.
    """

    name = "loss-flat"
    boundary = Boundary.CURVE
    symptom = True
    change = "Find the cause first: a flat loss is what many faults look like."
    verify = "whyloss run again: the loss falls beyond its noise."

    updates: int = threshold(100, unit="updates", why="healthy runs of the tuning set had all left their start by then")
    share: float = threshold(0.02, unit="of the first level", why="healthy runs fell by 10 % and more in 100 updates")
    good: float = threshold(0.9, unit="of a baseline", why="a tenth below the best constant prediction took learning")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            reason = says_nothing(run, trace)
            yield from [self.skipped(reason)] if reason else self.check_trace(trace)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        loss = trace.loss
        if loss is None or len(loss.finite) < self.updates:
            yield self.skipped(f"needs the loss of {self.updates} updates")
            return
        result = fall(loss)
        assert result is not None  # more than six finite samples
        moved = max(abs(result.drop), result.start - result.lowest)
        # noise can hide a movement; it cannot make a level that moved by a tenth a flat one
        limit = max(self.share * abs(result.start), min(ERRORS * result.error, SHARE * abs(result.start)))
        jump = abs(result.start - loss.finite.first)  # in the first updates
        moved = max(moved, jump - ERRORS * result.noise)
        if moved > limit or fell(result):
            yield self.passed(f"the loss moved from {result.start:.4g} to {result.end:.4g}")
            return
        if self._started_good(trace):
            yield self.passed(f"the loss stayed at {result.end:.4g}, where an earlier training had brought it")
            return
        exact = bool(np.all(loss.values == loss.first))
        how = "exactly constant" if exact else f"{result.start:.6g} at the start and {result.end:.6g} at the end"
        yield self.finding(
            f"the loss is {how} over {len(loss)} updates",
            Evidence("change of the loss level", result.drop, limit, "", (0, int(loss.steps[-1]))),
            severity=Severity.WARNING,
            place=trace.loss_place,
        )

    def _started_good(self, trace: Trace) -> bool:
        """By the loss of a constant prediction; where that is not known, by the weights."""
        levels, own = baselines(trace), own_loss(trace)
        start = None if own is None else fall(own)
        if levels and start is not None:
            return start.start < self.good * levels[-1].value
        return untrained(trace.trained) is False

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        tuned = tuple(replace(t, largest=(t.std or 0.1) * 6) for t in sample_tensors())
        hand = flat(200, 0.4)
        return (
            fires("noise around ln 10 for 200 updates", sample_run(loss=flat(200)), Severity.WARNING),
            fires("exactly constant", sample_run(loss=np.full(200, 2.3)), Severity.WARNING),
            fires("a loss written by hand, on fresh weights", sample_run(loss=hand, objectives=()), Severity.WARNING),
            silent("near miss: a fall of 10 % under the same noise", sample_run(loss=falling(200, 2.3, 2.05, 0.002))),
            silent(
                "near miss: a fall by a fifth in noise",
                sample_run(loss=falling(420, 0.286, 0.225, 0.25), objectives=()),
            ),
            silent("near miss: a jump at once, then level", sample_run(loss=np.r_[2.3, flat(199, 15.0)])),
            silent(
                "near miss: solved in a few updates, then level", sample_run(loss=np.r_[6.0, 0.9, 0.1, flat(197, 0.01)])
            ),
            silent("near miss: too short to say", sample_run(loss=flat(30))),
            silent("near miss: fine-tuning that starts at 0.1", sample_run(loss=flat(200, 0.1))),
            silent("near miss: the same, written by hand", sample_run(loss=hand, tensors=tuned, objectives=())),
            silent("near miss: a policy gradient around 0", sample_run(loss=flat(200, 1.0, 0.5) - 1.0, objectives=())),
            silent(
                "near miss: a generator at a level loss",
                _two(sample_run(loss=flat(200, 0.7)), sample_run(loss=flat(200, 1.3))),
            ),
        )


def _two(a: Run, b: Run) -> Run:
    """Two optimizers at the same time, each with tensors of its own."""
    other = b.traces[0]
    apart = tuple(replace(t, key=t.key + 100) for t in other.tensors)
    unlike = (Objective(kind="binary_cross_entropy_with_logits", single=False),)
    seen = tuple(replace(t, in_optimizer=False) for t in a.traces[0].tensors)
    return Run(traces=(*a.traces, replace(other, index=1, tensors=apart + seen, objectives=unlike)), facts=a.facts)
