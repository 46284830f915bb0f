"""wrong-derivative."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run, with_probe
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "derivative"
ON_PURPOSE = {
    "flat": "is made up where its forward is constant",
    "identity": "changes the gradient on its way through an identity",
    "feedback": "uses an input that its forward does not use",
}


@dataclass(frozen=True)
class WrongDerivative(Rule):
    """A hand-written backward is not the derivative of its forward.

    ## What it detects
    A `torch.autograd.Function` of the program's own was called in a recorded step. On what it was given there, in
    float64, its backward is compared with central differences of its forward, element by element.
    ## Why it matters
    Everything before that call is led the wrong way, by a factor, a sign, or at random. What comes after it learns, so
    that the loss may fall and merely end too high.
    ## What else looks like this
    Straight-through estimators, quantisers, spikes and clamps, whose forward is constant where they differ; gradient
    reversal and scaling, whose forward is the identity; feedback alignment: all on purpose, and not reported. Any
    other one in a run that learns well is an info.
    ## What to do
    Derive the backward again, or leave it out: torch differentiates what is written in its own operations. Check it
    with `torch.autograd.gradcheck` in float64.
    """

    name = "wrong-derivative"
    boundary = Boundary.BACKWARD
    explains = (
        *("loss-flat", "loss-diverging", "loss-at-baseline", "plateau-high", "lr-too-high", "loss-nonfinite"),
        *("exploding-gradient", "vanishing-gradient", "zero-gradient", "underfitting", "dead-relu"),
    )
    change = "Correct the backward of this function, or write the forward in operations of torch and leave it out."
    verify = "torch.autograd.gradcheck(Function.apply, inputs) in float64 passes."

    wrong: float = threshold(0.01, unit="of the derivative", why="central differences in float64 are good to 1e-8")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
                continue
            wrong = [p for p in probes if p.outcome == "differs" and p.number("worst") > self.wrong]
            for probe in wrong:
                yield self._found(trace, probe)
            if not wrong:
                yield self.passed("; ".join(dict.fromkeys(_as_it_is(p) for p in probes)))

    def _found(self, trace: Trace, probe: Probe) -> Outcome:
        looked = sum(probe.number(n) for n in ("agree", "flat", "differ"))
        differ = probe.number("flat") + probe.number("differ")
        wrong = ends_poorly(trace)
        ours, theirs = probe.number("ours"), probe.number("theirs")
        return self.finding(
            f"the backward of {probe.subject} is not the derivative of its forward at {differ:.0f} of {looked:.0f} "
            f"places: it gives {theirs:.4g} where the derivative is {ours:.4g}",
            Evidence("backward gives", theirs, ours, "", (probe.step,)),
            Evidence("places where they differ", differ, 0, f"of {looked:.0f}", (probe.step,)),
            severity=Severity.ERROR if wrong else Severity.INFO,
            place=probe.place,
            first_step=probe.step,
            certain=wrong,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        stuck = sample_run(loss=flat(200))
        numbers = {"agree": 0, "flat": 0, "differ": 12, "rough": 0, "worst": 2.0, "ours": 0.18, "theirs": -0.18}
        through = numbers | {"flat": 12, "differ": 0, "worst": 0.0}
        return (
            fires("a wrong sign", with_probe(stuck, PROBE, "differs", numbers, subject="Swish"), Severity.ERROR),
            silent(
                "near miss: it agrees", with_probe(stuck, PROBE, "agrees", numbers | {"agree": 12}, subject="Swish")
            ),
            silent(
                "near miss: straight through a rounding", with_probe(stuck, PROBE, "flat", through, subject="Swish")
            ),
            silent("near miss: a gradient reversal", with_probe(stuck, PROBE, "identity", numbers, subject="Swish")),
            silent("near miss: feedback alignment", with_probe(stuck, PROBE, "feedback", numbers, subject="Swish")),
            silent(
                "near miss: a surrogate in a run that learns",
                with_probe(sample_run(), PROBE, "differs", numbers, subject="Swish"),
            ),
        )


def _as_it_is(probe: Probe) -> str:
    how = ON_PURPOSE.get(probe.outcome, "agrees with difference quotients of its forward")
    return f"the backward of {probe.subject} {how}"
