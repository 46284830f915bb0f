"""target-shift."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run
from whyloss.core.sample import sample_run, with_probe
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE, CAUSALITY = "target-offset", "causality"


@dataclass(frozen=True)
class TargetShift(Rule):
    """The targets of a sequence are shifted against it once too often, or not at all.

    ## What it detects
    In a recorded step each target is compared with the elements of the input, exactly. Two places on: the program has
    shifted, and the model or the loss has done so again. The same place, in a model that sees the past only and does
    use it: nothing is shifted, and the answer is the last thing that the model was given.
    ## Why it matters
    Twice: the model learns to leave out every other element. Not at all: it learns to copy, with a loss near zero, and
    what it generates repeats itself.
    ## What else looks like this
    Masked models, whose inputs differ from the targets where they count; autoencoders, which see the whole sequence or
    each element by itself; several heads that predict several places ahead. None is reported.
    ## What to do
    Shift in one place: `logits[:, :-1]` against `tokens[:, 1:]`. Models of transformers shift inside when they are
    given `labels`: give them `labels=input_ids`.
    """

    name = "target-shift"
    boundary = Boundary.OBJECTIVE
    explains = ("plateau-high", "underfitting", "converged", "train-eval-gap", "loss-at-baseline")
    change = "Shift the targets once: outputs at place i are compared with the input's element i + 1."
    verify = "For one sequence, print the input and the targets that the loss is given: they are one place apart."

    twice: int = threshold(2, unit="places", why="exact: every target that counts is that element of the input")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome != "shifted":
                yield self.passed("the targets are no elements of an input")
            else:
                yield self._judge(probes[-1], made(run.probes, trace.index, CAUSALITY))

    def _judge(self, probe: Probe, causality: tuple[Probe, ...]) -> Outcome:
        offset = int(probe.number("offset"))
        alone = probe.number("others") == 0
        past = bool(causality) and causality[-1].outcome == "causal" and causality[-1].number("memory") == 1
        if alone and offset == self.twice:
            return self._found(probe, "the element two places on: they are shifted twice")
        if alone and offset == 0 and past:
            return self._found(probe, "the element that the model was just given: they are not shifted at all")
        return self.passed(f"target i is the element i {offset:+d} of {probe.subject}")

    def _found(self, probe: Probe, what: str) -> Outcome:
        counted = probe.number("counted")
        return self.finding(
            f"in {probe.subject}, each target is {what}",
            Evidence(
                "target i is the input's element", f"i + {probe.number('offset'):.0f}", "i + 1", "", (probe.step,)
            ),
            Evidence("targets that were compared, all equal", counted, None, "targets", (probe.step,)),
            severity=Severity.ERROR,
            place=probe.place,
            first_step=probe.step,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(offset: int, outcome: str = "causal", memory: int = 1, others: int = 0) -> Run:
            found = {"offset": offset}
            there = with_probe(
                sample_run(), PROBE, "shifted", found | {"counted": 500, "others": others}, step=2, subject="ids"
            )
            return with_probe(there, CAUSALITY, outcome, found | {"memory": memory}, step=2, subject="ids")

        return (
            fires("shifted twice", run(2), Severity.ERROR),
            fires("a causal model that copies", run(0), Severity.ERROR),
            silent("near miss: the next element", run(1)),
            silent("near miss: an autoencoder", run(0, "leak")),
            silent("near miss: each element by itself", run(0, memory=0)),
            silent("near miss: a source that holds the targets, too", run(2, others=1)),
            silent("near miss: other targets", with_probe(sample_run(), PROBE, "unrelated", {}, step=2)),
        )
