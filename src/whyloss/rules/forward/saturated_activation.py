"""saturated-activation."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.levels import says_nothing
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat
from whyloss.core.saturation import Bounded, bounded
from whyloss.rules.recorded import named, place_of, sample_recorded, step_through
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

EARLY = ("input-unscaled", "input-constant", "bad-init-scale", "activation-explosion", "target-unscaled")
LATER = ("lr-too-high", "gradient-not-cleared", "loss-diverging", "loss-sign", "accumulation-scale")


@dataclass(frozen=True)
class SaturatedActivation(Rule):
    """Sigmoid or tanh units sit in the flat region, where next to no gradient passes through them.

    ## What it detects
    In a run that does not learn from its inputs, the mean slope of a bounded activation (sigmoid, tanh, hardtanh,
    hardsigmoid, softsign), of all units and examples: below `hidden` of the largest slope where layers with weights
    follow, at the start or at the end; below `head` before any update where none follows. The slope follows from
    the mean and the mean square of what the activation gives.
    ## Why it matters
    The layers before it get that share of their gradient. What they compute is binary, and hardly changes.
    ## What else looks like this
    Gates, whose result multiplies another one, as in LSTM, GRU and attention; the probabilities of a confident trained
    classifier; a bias that starts the last layer at a rare class; units that saturate in a run that learns. None of
    them is reported; hidden units that are flat from the start of a run that learns are an info.
    ## What to do
    From the start: standardise the inputs, and scale the weights by 1/√fan_in. Later: lower the rate or clip the
    gradient. Or use ReLU or GELU, which have no upper limit.
    """

    name = "saturated-activation"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-flat", "loss-at-baseline", "vanishing-gradient", "zero-gradient", "lr-too-low", "plateau-high"),
        *("underfitting", "update-not-landing", "not-converged"),
    )
    explained_by = EARLY + LATER
    change = "Standardise the inputs, scale the weights by 1/√fan_in, or use ReLU or GELU in place of this activation."
    verify = "Run again: the activation's values keep clear of its limits, and the layers before it move."

    hidden: float = threshold(
        0.1, unit="of the largest slope", why="healthy hidden layers kept a quarter; N(0, 8²) before a tanh leaves this"
    )
    head: float = threshold(
        0.0266, unit="of the largest slope", why="the slope of a sigmoid at ±5, where it is within 0.0067 of a limit"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            reason = says_nothing(run, trace)
            if reason or not trace.graphs:
                yield self.skipped(reason or "no step of this optimizer was recorded")
            else:
                yield self._judge(trace)

    def _judge(self, trace: Trace) -> Outcome:
        found = bounded(trace)
        flat_ones = [(b, late) for b in found if (late := self._flat(b)) is not None]
        least = min((float(b.slopes.low.min()) for b in found), default=None)
        if least is None:
            return self.passed(f"no sigmoid or tanh but gates, in {len(trace.graphs)} recorded steps")
        learned = learned_from_input(trace)
        flat_ones = [(b, late) for b, late in flat_ones if learned is False or (learned and not late and b.hidden)]
        if not flat_ones:
            return self.passed(f"{len(found)} bounded activations, the flattest at {least:.2g} of its largest slope")
        first, late = min(flat_ones, key=lambda pair: pair[1])
        slope = first.slopes.last if late else first.at_start
        step = int(first.slopes.steps[-1 if late else 0])
        more = len(flat_ones) - 1
        others = f"; {more} more {'are' if more > 1 else 'is'} flat, too" if more else ""
        return self.finding(
            f"{named(first.op)} passes on {slope:.2%} of the gradient, in the mean over units and examples"
            f"{', at the end' if late else ', before it is trained'}{others}",
            Evidence("mean slope, of the largest", slope, self.hidden if first.hidden else self.head, "", (step,)),
            *([Evidence("the same at the first update", first.at_start, None, "", (0,))] if late else []),
            severity=Severity.INFO if learned else Severity.WARNING,
            place=place_of(first.op),
            first_step=step,
            explained_by=LATER if late else EARLY,
        )

    def _flat(self, b: Bounded) -> bool | None:
        """False: at the start; True: at the end only; None: not."""
        if b.at_start <= (self.hidden if b.hidden else self.head):
            return False
        return True if b.hidden and b.slopes.last <= self.hidden else None

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        bad = flat(200)
        full, healthy = step_through(std=0.985), step_through(std=0.5)
        prior = step_through("sigmoid", mean=0.01, std=1e-4, hidden=False)
        sure, unsure = (step_through("sigmoid", mean=0.3, std=std, hidden=False) for std in (0.457, 0.2))
        return (
            fires("tanh behind inputs of 0…255", sample_recorded(full, loss=bad), Severity.WARNING),
            fires("flat later on", sample_recorded(healthy, full, loss=bad), Severity.WARNING),
            fires("a head that is certain before it is trained", sample_recorded(sure, loss=bad), Severity.WARNING),
            fires("the same in a run that learns", sample_recorded(full, updates=200), Severity.INFO),
            silent("near miss: flat later on in a run that learns", sample_recorded(healthy, full, updates=200)),
            silent("near miss: half-way up, nothing learned", sample_recorded(healthy, loss=bad)),
            silent("near miss: gates", sample_recorded(step_through(std=0.985, then="mul"), loss=bad)),
            silent("near miss: a head that became certain", sample_recorded(unsure, sure, loss=bad)),
            silent("near miss: a last bias for a rare class", sample_recorded(prior, loss=bad)),
            silent(
                "near miss: a hardtanh with other limits", sample_recorded(step_through("hardtanh", std=3.0), loss=bad)
            ),
        )
