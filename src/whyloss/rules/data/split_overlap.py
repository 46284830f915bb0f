"""split-overlap."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.feed import Evaluation, Fed
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class SplitOverlap(Rule):
    """Training examples stand in the data that the model is evaluated on.

    ## What it detects
    An evaluation of which a part, more than `share` (of token sequences `most`), was seen in training bit for bit; or
    all of it, where the script calls it validation or test and evaluates on nothing else.
    ## Why it matters
    The figure that should tell memory from understanding tells neither, and looks too good.
    ## What else looks like this
    The training accuracy: all of its examples are trained on, and nobody calls it validation; or one line computes it
    and that on held-out data in passes of their own. A pass over all data at once, for a plot. Data in which different
    examples are equal, as one-hot states or short integer sequences are: such twins stand within single batches or
    within the evaluation, too, and nothing is said then, unless nearly all numbers of the evaluation differ: then equal
    examples are copies, as oversampling makes them.
    ## What to do
    Split by example before anything else is done: before augmenting, oversampling, or cutting windows.
    """

    name = "split-overlap"
    boundary = Boundary.DATA
    change = "Split the indices first, and build both data sets from disjoint ones; drop duplicates before splitting."
    verify = "Run again: no example of the evaluation is seen in training."

    share: float = threshold(0.1, unit="of the examples", why="published tables hold a few true duplicates")
    most: float = threshold(0.5, unit="of the examples", why="of token sequences: short ones are equal by chance")
    least: int = threshold(10, unit="examples", why="fewer may be such duplicates")
    whole: float = threshold(0.9, unit="of the examples", why="all but those of batches that were not looked at")
    twins: float = threshold(0.002, unit="of the examples of a batch", why="continuous data has none")

    def check(self, run: Run) -> Iterator[Outcome]:
        fed = run.fed
        looked = [e for e in run.evaluations if e.distinct >= self.least and fed is not None]
        if fed is None or not looked:
            yield self.skipped("needs an evaluation of 10 examples, and training batches to compare it with")
            return
        alike = max(e.twins / max(e.distinct + e.twins, 1) for e in looked)
        copies = all(e.continuous for e in looked)
        if not copies and (fed.twins > self.twins * fed.examples or alike > self.twins):
            yield self.skipped("different examples of this data are equal: which ones were trained on can't be told")
            return
        found = [f for e in looked if (f := self._judge(e, fed, looked)) is not None]
        yield from found
        if not found:
            shares = ", ".join(f"{e.shared} of {e.distinct}" for e in looked[:3])
            yield self.passed(f"examples of the evaluations that were seen in training: {shares}")

    def _judge(self, evaluation: Evaluation, fed: Fed, others: list[Evaluation]) -> Finding | None:
        shared, distinct = evaluation.shared, evaluation.distinct
        least = self.most if evaluation.discrete else self.share
        if shared < max(self.least, least * distinct):
            return None
        if shared >= self.whole * distinct:
            elsewhere = any(e.held_out for e in others)
            if elsewhere or not evaluation.claims_held_out:
                return None
        elif shared >= self.whole * fed.distinct:
            return None  # all data there is, training data among it
        elif evaluation.loader is None and not evaluation.mixed and evaluation.passes > 1:
            return None  # one line evaluates on training data and on others, each in a pass of its own
        return self.finding(
            f"{shared} of the {distinct} examples that the model is evaluated on were trained on",
            Evidence("examples seen in training", shared, 0.0, f"of {distinct}", (evaluation.first, evaluation.last)),
            Evidence("as a share", shared / distinct, self.share),
            severity=Severity.WARNING,
            place=_outermost(evaluation),
            first_step=evaluation.first,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(*evaluations: dict[str, Any], **fed: Any) -> Run:
            seen = Fed(**({"passes": 100, "examples": 3200, "distinct": 640} | fed))
            made = (Evaluation(**({"index": i, "distinct": 200} | e)) for i, e in enumerate(evaluations))
            return replace(sample_run(), fed=seen, evaluations=tuple(made))

        def line(source: str) -> tuple[Place, ...]:
            return (Place(file="train.py", line=40, source=source),)

        named = {"places": line("acc = validate(model, val_loader)")}
        return (
            fires("half of the validation set", run({"shared": 100}), Severity.WARNING),
            fires("all of what is called validation", run({"shared": 200, **named})),
            fires("a part, beside a proper evaluation", run({"shared": 0}, {"shared": 60})),
            silent("near miss: the training accuracy", run({"shared": 200, "places": line("evaluate(train_loader)")})),
            silent("near miss: training accuracy and held-out accuracy", run({"shared": 200, **named}, {"shared": 0})),
            silent("near miss: training and held-out accuracy in one line", run({"shared": 140, "passes": 8})),
            silent("near miss: three true duplicates", run({"shared": 3})),
            silent("near miss: all data at once, for a plot", run({"distinct": 840, "shared": 640})),
            silent("near miss: one-hot states", run({"shared": 150}, twins=2000)),
            fires("oversampled before the split", run({"shared": 52, "twins": 56, "continuous": True}, twins=900)),
            silent(
                "near miss: sentences of a few words, which stand twice in the evaluation",
                run({"shared": 60, "twins": 20}),
            ),
            silent("near miss: short token sequences, some of them equal", run({"shared": 60, "discrete": True})),
            silent("near miss: nothing shared", run({"shared": 0})),
        )


def _outermost(evaluation: Evaluation) -> Place:
    """Of the lines that led there, the one that chose the data: the outermost but the program's entry."""
    places = [p for p in evaluation.places if p.file]
    named = [p for p in places if any(w in (p.source or "").lower() for w in ("val", "test", "held"))]
    return (named or places or [Place()])[-1 if not named else 0]
