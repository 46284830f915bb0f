"""plateau-high."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.curve import curve, level_at_end, still_falling
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import baselines, own_loss, says_nothing
from whyloss.core.progress import ERRORS, learned
from whyloss.core.run import Run
from whyloss.core.sample import falling, flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class PlateauHigh(Rule):
    """The loss came down a part of the way and stopped at a level that is still high.

    ## What it detects
    A run that learned, whose loss over the last third is level, at more than `high` of the loss of the best constant
    prediction.
    ## Why it matters
    Most of what separates a good model from a constant one was not learned.
    ## What else looks like this
    Data that allows no better: noisy labels, prices, language. A curve can't tell that from a fault: it is an info, and
    stands beneath any cause that is found.
    ## What to do
    Fit one single batch: if that works down to nearly 0, the model and the wiring are able; look at the rate, at noise
    in the labels, at the size of the model.
    """

    name = "plateau-high"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = (
        "softmax-before-cross-entropy",
        "sigmoid-before-bce-with-logits",
        "dead-relu",
        "saturated-activation",
        "missing-nonlinearity",
        "output-range",
        "lr-limited-plateau",
        "lr-too-high",
        "lr-too-low",
        "frozen-parameters",
        "detached-parameters",
        "optimizer-missing-parameters",
        "class-imbalance",
        "weight-decay-dominates",
        "labels-uninformative",
        "loss-broadcast",
    )
    change = "Fit one single batch first; then a smaller rate, more capacity, or cleaner labels."
    verify = "Fit one batch: if its loss goes to nearly 0, the plateau is one of the data or the rate."

    high: float = threshold(0.5, unit="of the best constant loss", why="half of the way is not learned")
    updates: int = threshold(100, unit="updates", why="a third of less shows no level")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            own, known = own_loss(trace), baselines(trace)
            shape = curve(own) if own is not None else None
            reason = says_nothing(run, trace)
            if reason or shape is None or not known or trace.updates < self.updates:
                yield self.skipped(reason or f"needs {self.updates} updates of a loss whose baseline is known")
                continue
            last, level, best = shape.part(2 / 3), level_at_end(shape), known[-1]
            stands = abs(float(last[0] - last[-1])) <= max(ERRORS * shape.error, 0.02 * level)
            if not stands or still_falling(shape) or level <= self.high * best.value or not learned(trace):
                yield self.passed(f"the loss ends at {level:.4g}; {best.name} is {best.value:.4g}")
                continue
            yield self.finding(
                f"the loss stands at {level:.4g}, {level / best.value:.0%} of {best.name} ({best.value:.4g})",
                Evidence("loss level over the last sixth", level, self.high * best.value, "", (0, trace.updates - 1)),
                severity=Severity.INFO,
                place=trace.loss_place,
                first_step=int(shape.steps[len(shape.steps) * 2 // 3]),
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            fires("stops at 1.6 of 2.3", sample_run(loss=np.r_[falling(100, 2.3, 1.6), flat(200, 1.6)]), Severity.INFO),
            silent("near miss: stops at 0.2", sample_run(loss=np.r_[falling(100), flat(200, 0.2)])),
            silent("near miss: never moved", sample_run(loss=flat(300))),
        )
