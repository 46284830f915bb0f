"""causal-leak."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run
from whyloss.core.sample import sample_run, with_probe
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "causality"


@dataclass(frozen=True)
class CausalLeak(Rule):
    """A model that is to predict the next element of a sequence sees it.

    ## What it detects
    The targets are the input's own elements, shifted, by exact comparison. A recorded step was run again with other
    elements in the second half of every sequence: predictions that may only see the first half changed.
    ## Why it matters
    The loss falls, because the answer is in the input; what is generated is nonsense, as there the answer is not.
    ## What else looks like this
    Masked language models and autoencoders, whose targets are not shifted, may see everything, and so may the encoder
    of a sequence-to-sequence model: an input beside that which holds the targets is left as it is. A leak of less than
    `effect`, as by a norm over the time, is an info.
    ## What to do
    Give attention its causal mask (`is_causal=True`, or `nn.Transformer.generate_square_subsequent_mask` as `mask`); no
    bidirectional layer; pad convolutions on the left only.
    """

    name = "causal-leak"
    boundary = Boundary.DATA
    explains = ("train-eval-gap", "converged")
    change = (
        "Hide the future: a causal mask in attention, no bidirectional layer, convolutions padded on the left only."
    )
    verify = "Change the last element of an input in eval mode: the outputs at all places before it stay the same."

    effect: float = threshold(
        0.01, unit="of the change after it", why="without a mask it was 0.07 to 1; norms stay below"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = [p for p in made(run.probes, trace.index, PROBE) if p.number("offset") >= 1]
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome != "leak":
                yield self.passed("other elements in the second half of a sequence leave what comes before as it is")
            else:
                yield self._found(probes[-1])

    def _found(self, probe: Probe) -> Outcome:
        effect = probe.number("effect")
        share = probe.number("changed")
        return self.finding(
            f"predictions depend on what comes after: with other elements in the second half of {probe.subject}, "
            f"{share:.0%} of the predictions before it change",
            Evidence("change before", effect, self.effect, "of the change after it", (probe.step,)),
            Evidence("target i is the input's element", f"i + {probe.number('offset'):.0f}", None, "", (probe.step,)),
            severity=Severity.ERROR if effect > self.effect else Severity.INFO,
            place=probe.place,
            first_step=probe.step,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        numbers = {"offset": 1, "effect": 0.3, "changed": 1.0, "length": 32}
        run = sample_run()
        return (
            fires("no mask", with_probe(run, PROBE, "leak", numbers, subject="x"), Severity.ERROR),
            silent("near miss: a causal mask", with_probe(run, PROBE, "causal", numbers, subject="x")),
            silent("near miss: an autoencoder", with_probe(run, PROBE, "leak", numbers | {"offset": 0}, subject="x")),
            silent(
                "near miss: a norm over time", with_probe(run, PROBE, "leak", numbers | {"effect": 1e-3}, subject="x")
            ),
        )
