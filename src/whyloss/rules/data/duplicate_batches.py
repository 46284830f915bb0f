"""duplicate-batches."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.feed import Evaluation, Fed, Loader
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class DuplicateBatches(Rule):
    """The same examples come again where others should have come.

    ## What it detects
    By the bits of the batches: an iterator that is made anew for each step and so always gives its first batch; a slice
    that is cut anew at each step and always at the same place; or whole batches that come again within one round of a
    loader that draws without replacement.
    ## Why it matters
    The network is trained on a part of the data and memorises it. The loss looks excellent, an evaluation does not.
    ## What else looks like this
    Training on all data at once, or on one batch on purpose: the batch is made once, before the loop, and nothing is
    evaluated on other data. Epochs: each round of the loader has every batch once. Sampling with replacement or by
    weight. Data of few distinct examples, as one-hot states are: batches of them differ in their order. None of them
    is reported.
    ## What to do
    Make the iterator once an epoch: `for batch in loader`. Move the index of a slice on. Give each worker of an
    iterable data set its own part (`torch.utils.data.get_worker_info()`), and its own seed.
    """

    name = "duplicate-batches"
    boundary = Boundary.DATA
    explains = ("overfitting", "train-eval-gap")
    change = "Iterate with `for batch in loader`, so that each round goes on through the data."
    verify = "Run again: as many distinct examples are seen as the data set has."
    references = ("https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.IterableDataset",)

    passes: int = threshold(8, unit="training passes", why="one batch may come twice by accident, eight do not")
    larger: float = threshold(2.0, unit="times the batch", why="else nearly all data was used")
    share: float = threshold(0.25, unit="of the batches", why="an oversampled data set that is shuffled gives none")

    def check(self, run: Run) -> Iterator[Outcome]:
        fed = run.fed
        if fed is None or fed.passes < self.passes:
            yield self.skipped(f"needs {self.passes} training batches")
            return
        found = (
            self._first_batch(fed) or self._same_slice(fed) or self._within_a_round(fed) or self._made_once(run, fed)
        )
        yield found or self.passed(f"{fed.distinct} distinct examples in {fed.passes} training batches")

    def _first_batch(self, fed: Fed) -> Finding | None:
        loader = fed.loader
        if loader is None or loader.examples is None or fed.distinct > fed.size:
            return None
        if loader.batches < self.passes or loader.rounds < 0.9 * loader.batches:
            return None
        if loader.examples < self.larger * fed.size:
            return None
        return self._found(
            f"every step takes the first batch of a new iterator: {fed.distinct} of {loader.examples} examples used",
            Evidence("distinct examples", fed.distinct, loader.examples),
            Evidence("iterators made for as many batches", loader.rounds, None, f"for {loader.batches} batches"),
            place=loader.place,
        )

    def _made_once(self, run: Run, fed: Fed) -> Finding | None:
        """On purpose, to see whether one batch can be learned; but then nothing is evaluated on other data."""
        loader = fed.loader
        if loader is None or loader.examples is None or loader.batches > 1 or fed.distinct > fed.size:
            return None
        elsewhere = [e for e in run.evaluations if e.held_out and e.distinct >= self.passes]
        if loader.examples < self.larger * fed.size or not elsewhere:
            return None
        return self._found(
            f"every step trains on the one batch that was taken from the loader, {fed.distinct} of {loader.examples} "
            "examples, and other data are evaluated on",
            Evidence("distinct examples", fed.distinct, loader.examples),
            Evidence("batches taken from the loader", loader.batches, None, f"for {fed.passes} passes"),
            place=loader.place,
        )

    def _same_slice(self, fed: Fed) -> Finding | None:
        if fed.same_slice < self.passes or fed.same_slice < 0.9 * (fed.passes - 1) or fed.distinct > fed.size:
            return None
        return self._found(
            f"each step cuts the same slice out of the data: {fed.distinct} of {fed.whole} examples are used",
            Evidence("distinct examples", fed.distinct, fed.whole),
            Evidence("passes with the slice of the pass before", fed.same_slice, None),
            place=fed.slice_place,
        )

    def _within_a_round(self, fed: Fed) -> Finding | None:
        loader = fed.loader
        if loader is None or loader.replacement or "Weighted" in loader.sampler or fed.size < 2 or fed.constant:
            return None
        if fed.repeated < max(4, self.share * fed.of_loader):
            return None
        parts = f" by its {loader.workers} workers" if loader.workers > 1 else ""
        return self._found(
            f"{fed.repeated} of {fed.of_loader} batches had come before in the same round of the loader{parts}",
            Evidence("batches that came before", fed.repeated, 0.0),
            Evidence("distinct examples", fed.distinct, None, f"of {fed.examples} seen"),
            place=loader.place,
        )

    def _found(self, message: str, *evidence: Evidence, place: Place) -> Finding:
        return self.finding(message, *evidence, severity=Severity.WARNING, place=place, certain=True)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(loader: dict[str, Any] | None = None, **fed: Any) -> Run:
            facts = Loader(**({"examples": 640, "batch": 32, "rounds": 5, "batches": 100} | (loader or {})))
            fields = {"passes": 100, "examples": 3200, "distinct": 640, "size": 32, "of_loader": 100}
            return replace(sample_run(), fed=Fed(**(fields | fed), loader=facts))

        once = run({"rounds": 1, "batches": 1}, distinct=32)
        held_out = (Evaluation(index=0, distinct=200),)
        return (
            fires(
                "one batch before the loop, and an evaluation", replace(once, evaluations=held_out), Severity.WARNING
            ),
            fires("next(iter(loader)) at every step", run({"rounds": 100}, distinct=32), Severity.WARNING),
            fires("the same slice at every step", run(distinct=32, same_slice=99, whole=640, of_loader=0)),
            fires("two workers that give the same", run({"workers": 2, "examples": None}, repeated=50, distinct=320)),
            silent("near miss: five epochs", run()),
            silent("near miss: one batch, taken once before the loop", once),
            silent("near miss: next(iter(loader)) of a shuffled loader", run({"rounds": 100})),
            silent("near miss: all data at once", run({"examples": 32, "rounds": 100}, distinct=32)),
            silent("near miss: with replacement", run({"replacement": True}, repeated=40)),
            silent("near miss: two batches that came twice", run(repeated=2)),
            silent("near miss: batches of zeros, which are no copies of each other", run(repeated=90, constant=100)),
            silent("near miss: too short", run(passes=4)),
        )
