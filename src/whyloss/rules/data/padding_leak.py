"""padding-leak."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run, with_probe
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "padding-invariance"


@dataclass(frozen=True)
class PaddingLeak(Rule):
    """What is predicted of a sequence depends on how much padding stands behind it.

    ## What it detects
    An input has sequences of different lengths that end in a value which stands nowhere else. A recorded step was run
    again with three more positions of it, masks and the like along with it: predictions changed. Or they did not, since
    other values at the padding move them and other last elements do not: a recurrent layer has forgotten the sequence,
    or a mask hides the elements and shows the padding.
    ## Why it matters
    The prediction depends on the longest sequence that happens to be in the batch. The last state of a recurrent layer
    has read mostly padding; a mean over all positions is diluted by it.
    ## What else looks like this
    Models that work on sequences of one length only can't be looked at. A run that learns has learned to live with its
    padding: that is an info.
    ## What to do
    Pick the state at the last real position, or use pack_padded_sequence; divide a masked sum by the lengths; give
    attention `key_padding_mask` or `attention_mask`.
    """

    name = "padding-leak"
    boundary = Boundary.DATA
    explains = (
        *("loss-at-baseline", "loss-flat", "plateau-high", "underfitting", "train-eval-gap", "vanishing-gradient"),
        "zero-gradient",
    )
    explained_by = (
        *("lr-too-low", "lr-too-high", "lr-zero", "gradient-not-cleared", "gradient-cleared-early", "step-missing"),
        *("frozen-parameters", "optimizer-missing-parameters", "optimizer-stale-parameters", "update-not-landing"),
        *("clip-too-small", "detached-parameters", "softmax-before-cross-entropy", "input-ignored", "batch-leak"),
        *("labels-uninformative", "loss-reduction", "loss-target-mismatch", "symmetric-init", "wrong-derivative"),
    )
    change = "Leave padding out: the state at the last real position, a masked mean, a padding mask for attention."
    verify = "Append padding to a batch in eval mode: the outputs stay the same."

    effect: float = threshold(0.02, unit="of the spread of predictions", why="three positions moved them by 0.05 to 2")

    share: float = threshold(0.5, unit="of all positions", why="with less, most of what is read is the sequence itself")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome in ("forgotten", "nothing-else"):
                yield self._forgotten(trace, probes[-1])
            elif probes[-1].outcome != "leak" or not probes[-1].number("effect") > self.effect:
                yield self.passed("three more positions of padding leave the predictions as they are, or nearly")
            else:
                yield self._found(trace, probes[-1])

    def _forgotten(self, trace: Trace, probe: Probe) -> Outcome:
        within, real, inverted = probe.number("within"), probe.number("real"), probe.outcome == "nothing-else"
        what = (
            "on none of their elements: they are forgotten over it, or a mask is the wrong way round"
            if inverted
            else "no longer on their last elements: what came before the padding is forgotten"
        )
        return self.finding(
            f"the predictions depend on what stands at padding ({probe.number('value'):g}) behind the sequences of "
            f"{probe.subject}, and {what}",
            Evidence("mean change with others at padding", within, self.effect, "of the spread", (probe.step,)),
            Evidence("mean change with other last elements", real, self.effect, "of the spread", (probe.step,)),
            Evidence("positions that are padding", probe.number("padded"), None, "of all", (probe.step,)),
            severity=Severity.ERROR if inverted and ends_poorly(trace) else self._severity(trace, probe),
            place=probe.place,
            first_step=probe.step,
            certain=inverted,
        )

    def _severity(self, trace: Trace, probe: Probe) -> Severity:
        much = probe.number("padded") >= self.share
        return Severity.WARNING if much and ends_poorly(trace) else Severity.INFO

    def _found(self, trace: Trace, probe: Probe) -> Outcome:
        effect, value = probe.number("effect"), probe.number("value")
        return self.finding(
            f"with three more positions of padding ({value:g}) behind every sequence of {probe.subject}, the "
            f"predictions change by {effect:.2g} of their spread",
            Evidence("mean change", effect, self.effect, "of the spread of predictions", (probe.step,)),
            Evidence("positions that are padding", probe.number("padded"), None, "of all", (probe.step,)),
            severity=self._severity(trace, probe),
            place=probe.place,
            first_step=probe.step,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        numbers = {"effect": 0.6, "padded": 0.6, "positions": 40, "value": 0}
        stuck, forgotten = sample_run(loss=flat(200)), numbers | {"effect": 1e-7, "within": 0.9, "real": 1e-6}
        return (
            fires("the last state of an LSTM", with_probe(stuck, PROBE, "leak", numbers), Severity.WARNING),
            fires("an inverted mask", with_probe(stuck, PROBE, "nothing-else", forgotten), Severity.ERROR),
            fires("forgotten over long padding", with_probe(stuck, PROBE, "forgotten", forgotten), Severity.WARNING),
            silent("near miss: forgotten, learns", with_probe(sample_run(), PROBE, "forgotten", forgotten)),
            silent("near miss: a run that learns", with_probe(sample_run(), PROBE, "leak", numbers)),
            silent("near miss: hardly any change", with_probe(stuck, PROBE, "leak", numbers | {"effect": 1e-3})),
            silent("near miss: masked", with_probe(stuck, PROBE, "independent", numbers | {"effect": 0})),
        )
