"""lr-zero."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample import flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LrZero(Rule):
    """The learning rate is exactly 0, so no update changes anything.

    ## What it detects
    The rate of every parameter group is exactly 0.0 at every update, for `warmup` updates and more.
    ## Why it matters
    The loss, the gradients and the activations all look alive; only the weights stand still.
    ## What else looks like this
    A warm-up that starts at 0 and rises; one group held at 0 on purpose while others learn (layer-wise rates).
    Neither is reported.
    ## What to do
    Print `optimizer.param_groups[0]["lr"]` inside the loop. Usual causes: a scheduler that multiplies by 0, a scheduler
    stepped with too few total steps, `lr=0` left from a test, integer division (`1 // 10`).
    """

    name = "lr-zero"
    boundary = Boundary.UPDATE
    explains = ("loss-flat", "loss-at-baseline", "update-not-landing", "lr-too-low", "underfitting")
    change = "Give the optimizer a rate above 0, or fix the schedule that sets it to 0."
    verify = "Run again: lr[0] is above 0 and every update/norm is too."

    warmup: int = threshold(
        10, unit="updates", why="a warm-up from 0 has left 0 after one update; ten allow a delayed one"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        rates = [trace.signal(f"lr[{g}]") for g in range(trace.groups)]
        seen = [r for r in rates if r is not None]
        if not seen or trace.updates < self.warmup:
            yield self.skipped(f"needs the rate of {self.warmup} updates; {trace.updates} were seen")
            return
        if all(np.all(r.high == 0.0) & np.all(r.low == 0.0) for r in seen):
            yield self.finding(
                f"the rate of {trace.optimizer} is exactly 0 at all {trace.updates} updates",
                Evidence("largest rate of any group", 0.0, "above 0", "", (0, trace.updates - 1)),
                severity=Severity.ERROR,
                place=trace.place,
                certain=True,
            )
            return
        yield self.passed(
            f"rates between {min(r.low.min() for r in seen):.3g} and {max(r.high.max() for r in seen):.3g}"
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            fires("rate 0 throughout", sample_run(loss=flat(60), signals={"lr[0]": 0.0}), Severity.ERROR),
            silent("near miss: warm-up that starts at 0", sample_run(signals={"lr[0]": np.linspace(0.0, 1e-3, 200)})),
            silent(
                "near miss: one group held at 0, the other not",
                sample_run(groups=2, signals={"lr[0]": 0.0, "lr[1]": 1e-3}),
            ),
        )
