"""input-ignored."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly, learned_from_input
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run, sample_tensors, with_probe
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "input-independence"


@dataclass(frozen=True)
class InputIgnored(Rule):
    """The predictions do not depend on what the model is given.

    ## What it detects
    A recorded step was run again with the inputs exchanged among the examples, replaced by others and set to zero:
    every prediction stayed the same but for rounding, though the targets differ. Or that is so of one of several
    inputs, in a run that ends poorly. Or no tensor that the model was given is among those that the loss is made of.
    The last step that was looked at counts.
    ## Why it matters
    The best that is left to learn is a constant: the loss ends at that of predicting the class shares or the mean.
    ## What else looks like this
    A last layer or a branch that begins at zero depends on the input after its first update, and low-rank adapters do
    so from the start; a step before update `late` is therefore no more than an info. Dead units cut the input off, too,
    and a chain of layers that shrink everything loses it in rounding: dead-relu and vanishing-gradient explain it.
    Models of nothing but biases, models that are given no data, and losses without targets are not judged.
    ## What to do
    Follow the input through forward(): a variable that is overwritten, a tensor of zeros or noise in its place, a mask
    that hides everything, a factor that is always 0.
    """

    name = "input-ignored"
    boundary = Boundary.DATA
    explains = ("loss-at-baseline", "loss-flat", "plateau-high", "underfitting", "zero-gradient", "class-imbalance")
    explained_by = (
        *("dead-relu", "input-constant", "activation-collapse", "saturated-activation", "softmax-wrong-axis"),
        *("lr-zero", "update-not-landing", "optimizer-missing-parameters", "frozen-parameters", "lr-too-high"),
        *("output-range", "lr-schedule-collapsed", "nonfinite-forward", "input-unscaled", "vanishing-gradient"),
        *("activation-explosion", "exploding-gradient", "bad-init-scale", "symmetric-init"),
    )
    change = "Follow the input through forward() up to the prediction, and let it through where it is lost."
    verify = "Call the model on two different batches: the outputs differ."

    late: int = threshold(10, unit="updates", why="warm-ups from a rate of 0 have moved a head that began at 0 by then")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome == "partly":
                yield self._partly(trace, probes[-1])
            elif probes[-1].outcome != "ignored":
                change = probes[-1].number("change")
                yield self.passed(
                    f"other inputs changed the predictions of step {probes[-1].step} by up to {change:.2g}"
                )
            else:
                yield self._found(trace, probes[-1])

    def _partly(self, trace: Trace, probe: Probe) -> Outcome:
        late = probe.step >= self.late
        return self.finding(
            f"the predictions do not depend on {probe.subject}: other values in it, and zeros, leave every prediction "
            f"of step {probe.step} as it is, though other inputs count",
            Evidence(f"largest change beyond rounding, by {probe.subject}", 0.0, "above 0", "", (probe.step,)),
            Evidence("change by all inputs", probe.number("change"), "above 0", "", (probe.step,)),
            severity=Severity.WARNING if late and ends_poorly(trace) else Severity.INFO,
            place=probe.place,
            first_step=probe.step,
            certain=True,
        )

    def _found(self, trace: Trace, probe: Probe) -> Outcome:
        reached = probe.number("inputs")
        if reached:
            what = f"other values in {probe.subject}, and zeros, leave every prediction of step {probe.step} as it is"
        else:
            what = f"of the {probe.number('given'):.0f} tensors that the model is given none is used for the loss"
        return self.finding(
            f"the predictions do not depend on the input: {what}",
            Evidence("largest change of a prediction beyond rounding", 0.0, "above 0", "", (probe.step,)),
            Evidence("inputs that the loss is made of", reached, None, "tensors", (probe.step,)),
            severity=self._severity(trace, probe),
            place=probe.place,
            first_step=probe.step,
            certain=True,
        )

    def _severity(self, trace: Trace, probe: Probe) -> Severity:
        early = probe.number("inputs") > 0 and probe.step < self.late
        constants = not any(len(t.shape) > 1 for t in trace.trained)
        return Severity.INFO if early or constants or learned_from_input(trace) else Severity.ERROR

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        stuck = sample_run(loss=flat(200))
        one, unused = {"inputs": 1, "change": 0.0}, {"inputs": 0, "given": 1}
        two = {"inputs": 2, "change": 0.3}
        head = with_probe(stuck, PROBE, "ignored", one, step=2, subject="x")
        vectors = sample_run(loss=flat(200), tensors=[t for t in sample_tensors() if len(t.shape) == 1])
        return (
            fires("the input changes nothing", with_probe(stuck, PROBE, "ignored", one, subject="x"), Severity.ERROR),
            fires("the argument is never used", with_probe(stuck, PROBE, "ignored", unused, step=2)),
            fires("one of two inputs", with_probe(stuck, PROBE, "partly", two, subject="x"), Severity.WARNING),
            silent("near miss: one of two, in a run that learns", with_probe(sample_run(), PROBE, "partly", two)),
            silent("near miss: a head that began at zero", with_probe(head, PROBE, "used", one | {"change": 1e-4})),
            silent("near miss: looked at in the second update only", head),
            silent("near miss: a model of biases", with_probe(vectors, PROBE, "ignored", one)),
            silent("near miss: the loss falls below any constant's", with_probe(sample_run(), PROBE, "ignored", one)),
            silent("near miss: the input is used", with_probe(stuck, PROBE, "used", one | {"change": 0.3})),
        )
