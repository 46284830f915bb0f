"""input-constant."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.feed import Fed
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.run import Run
from whyloss.core.sample import flat, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class InputConstant(Rule):
    """All examples of a batch are the same, batch after batch.

    ## What it detects
    By their bits, the examples that the model is given are equal within the batch, in nearly all batches.
    ## Why it matters
    What does not differ between examples can't tell their targets apart: the best that is left to learn is the mean.
    ## What else looks like this
    A model that is given a constant by choice (a fixed noise image, a 1 for a single parameter) reaches its target all
    the same: a run that learns more than a constant prediction is reported as info. Batches of one example have nothing
    to be compared with.
    ## What to do
    Print two rows of the batch where it is made, and after each step that prepares it: a division by a wrong
    maximum, integers that were rounded to 0, an index that stands still.
    """

    name = "input-constant"
    boundary = Boundary.DATA
    explains = ("loss-at-baseline", "loss-flat", "input-ignored", "plateau-high", "zero-gradient", "underfitting")
    change = "Look at two rows of a batch at each step of its preparation; where they become equal is the fault."
    verify = "Run again: the examples of a batch differ."

    passes: int = threshold(8, unit="training passes", why="a batch or two may be equal by accident")
    share: float = threshold(0.9, unit="of the passes", why="a few other batches do not undo it")

    def check(self, run: Run) -> Iterator[Outcome]:
        fed = run.fed
        if fed is None or fed.passes < self.passes or fed.size < 2:
            yield self.skipped(f"needs {self.passes} training batches of two examples and more")
            return
        if fed.constant < self.share * fed.passes:
            yield self.passed(f"the examples of {fed.passes - fed.constant} of {fed.passes} batches differ")
            return
        trace = run.traces[0] if run.traces else None
        learns = trace is not None and learned_from_input(trace) is True
        yield self.finding(
            f"all examples of a batch are the same in {fed.constant} of {fed.passes} training batches",
            Evidence("batches of equal examples", fed.constant, 0.0, f"of {fed.passes}"),
            Evidence("distinct examples in all", fed.distinct, None, f"of {fed.examples}"),
            severity=Severity.INFO if learns else Severity.WARNING,
            place=trace.loss_place if trace is not None else None,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(learns: bool = False, **fed: Any) -> Run:
            fields = {"passes": 100, "examples": 3200, "distinct": 1, "size": 32, "constant": 100}
            return replace(sample_run(loss=None if learns else flat(200)), fed=Fed(**(fields | fed)))

        return (
            fires("every batch of zeros", run(), Severity.WARNING),
            fires("another constant in each batch", run(distinct=100)),
            silent("near miss: a constant input by choice, which learns", run(learns=True)),
            silent("near miss: batches of one example", run(size=1, constant=0)),
            silent("near miss: some equal batches", run(constant=10, distinct=900)),
            silent("near miss: too short", run(passes=3, constant=3)),
        )
