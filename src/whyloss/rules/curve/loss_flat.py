"""loss-flat."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.progress import ERRORS, fell
from whyloss.core.run import Trace
from whyloss.core.sample import falling, flat, sample_run
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
    minimum (fine-tuning, a resumed run); adversarial losses, which hold each other in balance; policy-gradient losses.
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

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        loss = trace.loss
        if loss is None or len(loss.finite) < self.updates:
            yield self.skipped(f"needs the loss of {self.updates} updates")
            return
        result = fall(loss)
        assert result is not None  # more than six finite samples
        moved = max(abs(result.drop), result.start - result.lowest)
        limit = max(self.share * abs(result.start), ERRORS * result.error)
        if moved > limit or fell(result):
            yield self.passed(f"the loss moved from {result.start:.4g} to {result.end:.4g}")
            return
        exact = bool(np.all(loss.values == loss.first))
        how = "exactly constant" if exact else f"{result.start:.6g} at the start and {result.end:.6g} at the end"
        yield self.finding(
            f"the loss is {how} over {len(loss)} updates",
            Evidence("change of the loss level", result.drop, limit, "", (0, int(loss.steps[-1]))),
            severity=Severity.WARNING,
            place=trace.step_place,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            fires("noise around ln 10 for 200 updates", sample_run(loss=flat(200)), Severity.WARNING),
            fires("exactly constant", sample_run(loss=np.full(200, 2.3)), Severity.WARNING),
            silent("near miss: a fall of 10 % under the same noise", sample_run(loss=falling(200, 2.3, 2.05, 0.002))),
            silent("near miss: too short to say", sample_run(loss=flat(30))),
        )
