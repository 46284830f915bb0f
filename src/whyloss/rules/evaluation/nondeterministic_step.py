"""nondeterministic-step."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Run, Trace
from whyloss.core.sample import sample_run
from whyloss.core.step_graph import StepGraph
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

SAID = "not deterministic"  # of a tape whose replays differ


@dataclass(frozen=True)
class NondeterministicStep(Rule):
    """The same step, run twice from the same state, gives other gradients.

    ## What it detects
    A recorded step was replayed twice with the same parameters, inputs and random numbers, and the bits of a gradient
    differed.
    ## Why it matters
    Runs with the same seed drift apart, so that two settings can't be compared by one run each. It is no reason not
    to learn: that is why it is an info.
    ## What else looks like this
    Other random numbers: a replay has the same ones. Sums over atomics on a GPU (index_add, scatter, some convolutions)
    are what it is nearly always.
    ## What to do
    `torch.use_deterministic_algorithms(True)` names the calls; leave it where bits don't matter.
    """

    name = "nondeterministic-step"
    boundary = Boundary.EVALUATION
    change = (
        "Where runs are to be repeatable: torch.use_deterministic_algorithms(True), and replace the calls it names."
    )
    verify = "Run twice with one seed: the losses agree to the last digit."

    times: int = threshold(1, unit="steps", why="one step that differs from itself is proof enough, bit for bit")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        differing = [g for g in trace.graphs if SAID in g.reason]
        repeated = [g for g in trace.graphs if g.faithful]
        if len(differing) >= self.times:
            yield self.finding(
                f"step {differing[0].step}, replayed twice from the same state, gives other gradients each time",
                Evidence("recorded steps whose replays differ", len(differing), 0, f"of {len(trace.graphs)}"),
                severity=Severity.INFO,
                place=trace.loss_place,
                first_step=differing[0].step,
                certain=True,
            )
        elif repeated:
            yield self.passed(f"{len(repeated)} recorded steps gave the same bits when they were replayed")
        else:
            yield self.skipped("needs a recorded step that could be replayed")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(reason: str) -> Run:
            return sample_run(graphs=(StepGraph(step=2, faithful=not reason, reason=reason),))

        return (
            fires("two replays differ", run("its ops are not deterministic: two replays differ"), Severity.INFO),
            silent("near miss: a hook that a replay does not call", run("a hook on a tensor's gradient")),
            silent("near miss: the same bits", run("")),
        )
