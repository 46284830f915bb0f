"""loss-wrong-value."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run, with_probe
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "independent-loss"
MEAN_FIRST = "the square of the mean difference"


@dataclass(frozen=True)
class LossWrongValue(Rule):
    """A loss that is written by hand has a slip in its formula.

    ## What it detects
    In a recorded step the loss is computed again in float64 from what it was made of. It equals, to one part in ten
    thousand, a known wrong form, and none of the right ones: a binary cross-entropy with one sign too few or log p
    twice, a squared error without its square or with a plus, the square of a mean where the mean of squares is meant.
    ## Why it matters
    Its minimum is not where predictions and targets agree.
    ## What else looks like this
    Losses of any other form, weighted, smoothed or new, are not judged. The square of a mean difference compares
    moments of two sets, which may be meant: an info, unless the run ends poorly.
    ## What to do
    Use the function of torch that it imitates, or compare with it once.
    """

    name = "loss-wrong-value"
    boundary = Boundary.OBJECTIVE
    explains = ("loss-diverging", "loss-flat", "plateau-high", "loss-nonfinite", "loss-at-baseline", "lr-too-high")
    change = "Correct the formula, or call the function of torch.nn.functional that it imitates."
    verify = "On one batch the loss equals that of torch.nn.functional."

    agrees: float = threshold(1e-4, unit="relative", why="single precision, and a small number within a logarithm")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome != "slip":
                sign = "minus " if probes[-1].outcome == "negated" else ""
                yield self.passed(f"the loss is {sign}a {probes[-1].subject}, computed again in float64")
            else:
                yield self._found(trace, probes[-1])

    def _found(self, trace: Trace, probe: Probe) -> Outcome:
        moments = probe.subject == MEAN_FIRST
        poor = Severity.WARNING if ends_poorly(trace) else Severity.INFO
        return self.finding(
            f"the loss is {probe.subject}",
            Evidence("loss", probe.number("loss"), probe.number("right"), "; limit: as it is usual", (probe.step,)),
            severity=poor if moments else Severity.ERROR,
            place=probe.place,
            first_step=probe.step,
            certain=not moments,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        stuck, numbers = sample_run(loss=flat(200)), {"loss": -0.3, "right": 0.7}
        slip = "the difference without a square"
        return (
            fires("no square", with_probe(stuck, PROBE, "slip", numbers, subject=slip), Severity.ERROR),
            fires("the mean first", with_probe(stuck, PROBE, "slip", numbers, subject=MEAN_FIRST), Severity.WARNING),
            silent("near miss: moments", with_probe(sample_run(), PROBE, "slip", numbers, subject=MEAN_FIRST)),
            silent("near miss: right", with_probe(stuck, PROBE, "agrees", numbers, subject="squared error")),
        )
