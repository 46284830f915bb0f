"""graph-leak."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.kept import Kept
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class GraphLeak(Rule):
    """The script keeps losses, not their values, and with each of them its graph.

    ## What it detects
    Marks on the autograd nodes of the losses: `alive` and more of them still exist after their backward pass.
    ## Why it matters
    Memory grows with every step, until the training dies hours later; a backward pass through a sum of such losses
    would go through all of them.
    ## What else looks like this
    The last loss lives until the next one; a few losses are kept while gradients are accumulated. Neither is reported.
    ## What to do
    `total += loss.item()`, `losses.append(loss.item())`; or `loss.detach()` where the value is needed as a tensor.
    """

    name = "graph-leak"
    boundary = Boundary.CURVE
    change = "Keep the value: total += loss.item(), losses.append(loss.item()), or loss.detach()."
    verify = "Run again: no graph outlives its backward pass, and memory stands level."
    references = ("https://docs.pytorch.org/docs/stable/notes/faq.html",)

    alive: int = threshold(32, unit="graphs", why="accumulation over micro-batches keeps a handful")

    def check(self, run: Run) -> Iterator[Outcome]:
        kept = run.kept
        if kept is None:
            yield self.skipped("needs 64 backward passes")
        elif kept.alive < self.alive:
            yield self.passed(f"{kept.alive} of {kept.made} graphs outlive their backward pass")
        else:
            where = run.traces[0].step_place if run.traces else None
            yield self.finding(
                f"{kept.alive} of {kept.made} losses still have their graph after their backward pass",
                Evidence("graphs that are still there", kept.alive, self.alive, f"of {kept.made}", (kept.step,)),
                severity=Severity.WARNING,
                place=kept.place if kept.place.file else where,
                first_step=kept.step,
                certain=True,
            )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(made: int, alive: int) -> Run:
            return replace(sample_run(), kept=Kept(made=made, alive=alive, step=made))

        return (
            fires("every loss is kept", run(128, 127), Severity.WARNING),
            silent("near miss: the last eight", run(128, 8)),
            silent("near miss: none", run(128, 0)),
            silent("near miss: too short", sample_run(10)),
        )
