"""graph-leak."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.kept import Kept
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

NODE = 450  # bytes of a node of autograd with its links, by the memory of a process that kept 5000 graphs of 102 nodes


@dataclass(frozen=True)
class GraphLeak(Rule):
    """The script keeps losses, not their values, and with each of them its graph.

    ## What it detects
    Marks on the autograd nodes of the losses: `alive` and more of them still exist after their backward pass. An alarm
    where those of the earlier half are among them; where they are let go again, as at the end of an epoch, an info.
    ## Why it matters
    Memory grows with every step. Backward has freed what the nodes had saved, unless it was told to retain it; the
    nodes themselves stay, about half a kilobyte each: a few megabytes in a small script, gigabytes in a long run of a
    deep network. A backward pass through a sum of such losses would go through all of them.
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
    early: float = threshold(0.25, unit="of those alive", why="half where none is let go, none where an epoch ends it")

    def check(self, run: Run) -> Iterator[Outcome]:
        if not run.kept:
            yield self.skipped("needs 64 backward passes")
            return
        most, last = max(run.kept, key=lambda k: k.alive), run.kept[-1]
        if most.alive < self.alive:
            yield self.passed(f"{most.alive} of {most.made} graphs outlive their backward pass")
            return
        grows = last.alive >= self.alive and last.early >= self.early * last.alive
        seen = last if grows else most
        size = seen.alive * seen.nodes * NODE
        yield self.finding(
            f"{seen.alive} of {seen.made} losses still have their graph after their backward pass, "
            f"about {size / 1e6:.2g} MB" + ("" if grows else "; they are let go later"),
            Evidence("graphs that are still there", seen.alive, self.alive, f"of {seen.made}", (seen.step,)),
            Evidence("nodes of one graph", seen.nodes, None, f"of about {NODE} bytes"),
            severity=Severity.WARNING if grows else Severity.INFO,
            place=seen.place if seen.place.file else run.traces[0].loss_place if run.traces else None,
            first_step=run.kept[0].step if grows else seen.step,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(*counts: tuple[int, int, int]) -> Run:
            kept = tuple(
                Kept(made=made, alive=alive, early=early, nodes=30, step=made) for made, alive, early in counts
            )
            return replace(sample_run(), kept=kept)

        return (
            fires("every loss is kept", run((64, 63, 32), (128, 127, 64)), Severity.WARNING),
            fires("every tenth loss is kept", run((64, 6, 3), (512, 51, 26)), Severity.WARNING),
            silent("near miss: let go at the end of an epoch", run((64, 63, 32), (128, 27, 0), (256, 55, 0))),
            silent("near miss: the last eight", run((128, 8, 0))),
            silent("near miss: none", run((128, 0, 0))),
            silent("near miss: too short", sample_run(10)),
        )
