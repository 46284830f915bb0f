"""unshuffled-data."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whyloss.core.feed import Fed, Loader
from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.levels import alternates, objective
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class UnshuffledData(Rule):
    """The batches are sorted by class.

    ## What it detects
    The labels of single batches hold much less entropy than those of all batches together: less than `share` of what a
    batch of that size would hold if it were drawn at random.
    ## Why it matters
    Each step pulls towards the class of its batch, and unlearns the others. The loss looks low within a class and jumps
    at its end, every epoch anew; an evaluation stays near chance. Batch statistics are those of one class, too.
    ## What else looks like this
    Batches smaller than the number of classes hold little entropy by chance, which is allowed for. Real and generated
    examples in batches of their own (GAN), several losses, and few batches are not judged.
    ## What to do
    Shuffle: `DataLoader(..., shuffle=True)`, or a new `torch.randperm` each epoch.
    """

    name = "unshuffled-data"
    boundary = Boundary.DATA
    explains = ("loss-spikes", "loss-oscillating", "loss-at-baseline", "plateau-high", "loss-diverging")
    change = "Shuffle the examples: DataLoader(..., shuffle=True), or index with a new torch.randperm each epoch."
    verify = "Run again: single batches hold about as much label entropy as all of them together."

    share: float = threshold(0.5, unit="of the entropy of a random batch", why="random batches had above 0.8 of it")
    batches: int = threshold(12, unit="observed batches", why="fewer may be one class by chance")
    labels: int = threshold(8, unit="labels in a batch", why="smaller batches hold few classes anyway")
    expected: float = threshold(0.3, unit="nats", why="nearly all labels of one class: nothing to be sorted by")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            yield self._judge(run, trace)

    def _judge(self, run: Run, trace: Trace) -> Outcome:
        within, pooled = trace.signal("target/batch_entropy"), trace.signal("target/entropy")
        count = trace.signal("target/count")
        if objective(trace) is None or within is None or pooled is None or count is None or alternates(run, trace):
            return self.skipped("needs one loss op with class labels")
        size = count.first
        if len(within) < self.batches or size < self.labels or not np.isfinite(pooled.last):
            return self.skipped(f"needs {self.batches} observed batches of {self.labels} labels")
        expected = random_entropy(pooled.last, int(size))
        found = float(np.median(within.values))
        if expected < self.expected or found > self.share * expected:
            return self.passed(f"a batch's labels hold {found:.3g} nats, a random one's would {expected:.3g}")
        loader = run.fed.loader if run.fed is not None else None
        kind = (
            (Evidence("sampler of the loader", loader.sampler, "RandomSampler"),) if loader and loader.sampler else ()
        )
        return self.finding(
            f"batches are sorted by class: a batch's labels hold {found:.3g} nats of entropy, those of all batches "
            f"{pooled.last:.3g}",
            Evidence("label entropy within a batch, median", found, self.share * expected, "nats"),
            Evidence("of a random batch of that size", expected, None, "nats"),
            *kind,
            severity=Severity.WARNING,
            place=loader.place if loader is not None else trace.loss_place,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(within: float, pooled: float = math.log(10), size: int = 64, updates: int = 200, **trace: Any) -> Run:
            signals = {
                "target/entropy": pooled,
                "target/batch_entropy": within,
                "target/count": size * np.arange(1.0, updates + 1),
            }
            facts = Loader(sampler="SequentialSampler", place=Place(file="train.py", line=18))
            made = sample_run(updates, signals=signals, **trace)
            return replace(made, fed=Fed(passes=100, examples=6400, distinct=640, loader=facts))

        two = (Objective(kind="cross_entropy", classes=10, single=False), Objective(kind="mse_loss", single=False))
        return (
            fires("one class a batch", run(0.0), Severity.WARNING),
            fires("two of ten classes a batch", run(0.69)),
            silent("near miss: random batches", run(2.2)),
            silent("near miss: batches of 8 of 100 classes", run(1.95, math.log(100), 8)),
            silent("near miss: 97 % of one class", run(0.0, 0.13)),
            silent("near miss: too few batches", run(0.0, updates=8)),
            silent("near miss: batches of one example", run(0.0, size=1)),
            silent("near miss: several losses, as of a GAN", run(0.0, objectives=two)),
        )


def random_entropy(pooled: float, size: int) -> float:
    """Mean entropy in nats of the labels of a random batch of `size`, from as many equal classes as have the pooled
    entropy; simulated with a generator of its own."""
    classes = max(round(math.exp(pooled)), 1)
    if size > 50 * classes:
        return pooled
    draws = np.random.default_rng(0).integers(0, classes, (100, min(size, 4096)))
    total = 0.0
    for row in draws:
        share = np.bincount(row) / len(row)
        share = share[share > 0]
        total -= float((share * np.log(share)).sum())
    return min(total / len(draws), pooled)
