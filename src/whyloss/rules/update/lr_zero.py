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
    The rate of every parameter group is exactly 0.0 at every update, or has been for the last `share` of them and more.
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
    share: float = threshold(
        0.9,
        unit="of the updates",
        why="a schedule that ends at 0 has done its work on the way; one that is there at a tenth has not",
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        rates = [trace.signal(f"lr[{g}]") for g in range(trace.groups)]
        seen = [r for r in rates if r is not None]
        if not seen or trace.updates < self.warmup:
            yield self.skipped(f"needs the rate of {self.warmup} updates; {trace.updates} were seen")
            return
        moving = [int(r.steps[r.high != 0.0][-1]) for r in seen if np.any(r.high != 0.0)]
        last = max(moving, default=-1)  # the last update at a rate other than 0
        standing = trace.updates - 1 - last
        if standing < max(self.warmup, self.share * trace.updates):
            low, high = min(r.low.min() for r in seen), max(r.high.max() for r in seen)
            yield self.passed(f"rates between {low:.3g} and {high:.3g}")
            return
        when = (
            f"all {trace.updates} updates"
            if last < 0
            else f"all updates from {last + 1} on, {standing} of {trace.updates}"
        )
        yield self.finding(
            f"the rate of {trace.optimizer} is exactly 0 at {when}",
            Evidence("largest rate of any group", 0.0, "above 0", "", (last + 1, trace.updates - 1)),
            severity=Severity.ERROR,
            place=trace.place,
            first_step=last + 1,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        collapsed = np.where(np.arange(200) == 0, 1e-3, 0.0)
        return (
            fires(
                "a schedule that multiplies by 0 after one update",
                sample_run(loss=flat(200), signals={"lr[0]": collapsed}),
            ),
            silent(
                "near miss: cosine to 0 at the end",
                sample_run(signals={"lr[0]": np.cos(np.linspace(0, np.pi / 2, 200)) ** 2 * 1e-3}),
            ),
            fires("rate 0 throughout", sample_run(loss=flat(60), signals={"lr[0]": 0.0}), Severity.ERROR),
            silent("near miss: warm-up that starts at 0", sample_run(signals={"lr[0]": np.linspace(0.0, 1e-3, 200)})),
            silent(
                "near miss: one group held at 0, the other not",
                sample_run(groups=2, signals={"lr[0]": 0.0, "lr[1]": 1e-3}),
            ),
        )
