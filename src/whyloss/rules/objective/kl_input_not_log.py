"""kl-input-not-log."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample_graph import F, SampleGraph, figures
from whyloss.core.softmax import PROBABILITIES, SIGMOIDS, UNCHANGED
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import BIAS_FIRST, WEIGHT_SECOND, Leaf, Op, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, sample_recorded, span
from whyloss.rules.rule import Example, Rule, fires, silent

AFFINE = WEIGHT_SECOND | BIAS_FIRST


@dataclass(frozen=True)
class KlInputNotLog(Rule):
    """`kl_div` is given probabilities or logits where it expects log-probabilities.

    ## What it detects
    In a recorded step, the first argument of `kl_div`: it comes from a softmax or a sigmoid; or its rows lie in [0, 1]
    and sum to 1; or it comes straight from a layer and takes values above 0, as no log-probability does.
    ## Why it matters
    The number is no divergence: it may be negative, its minimum is not where the two distributions agree, and for
    logits it falls without bound.
    ## What else looks like this
    `log_softmax`, or the log of a softmax, as the first argument and probabilities as the second are right; with
    `log_target=True` both are logs. Log-densities may be above 0: they are left alone.
    ## What to do
    `kl_div(log_softmax(student), softmax(teacher), reduction="batchmean")`. Its arguments stand the other way round
    than in KL(p ‖ q): first the log of q, then p.
    """

    name = "kl-input-not-log"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-flat", "plateau-high", "underfitting", "not-converged", "loss-diverging", "lr-too-low"),
        *("loss-wrong-value", "loss-sign"),
    )
    change = "Give kl_div log_softmax(...) of the prediction first, and the target's probabilities second."
    verify = "Run again: the divergence is never below 0, and 0 where both distributions agree."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.KLDivLoss.html",)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        yield from look(self, trace, _see, "every kl_div was given logarithms, as far as that is seen,")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        rows = figures(0, 1, distribution=True)
        return (
            fires("softmax first", sample_recorded(_step("softmax")), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step("softmax"), loss=[-0.1]), Severity.ERROR),
            fires("logits first", sample_recorded(_step(looks=figures(-2, 2))), Severity.ERROR),
            fires("rows that sum to 1, by hand", sample_recorded(_step("mine", looks=rows))),
            silent("near miss: log_softmax", sample_recorded(_step("log_softmax", looks=figures(-9, -0.1)))),
            silent("near miss: the log of a softmax", sample_recorded(_step("softmax", "log"))),
            silent("near miss: log-densities above 0", sample_recorded(_step("sub", looks=figures(-9, 1.5)))),
            silent("near miss: negative outputs of a layer", sample_recorded(_step(looks=figures(-9, -1)))),
        )


def _see(graph: StepGraph) -> Iterator[Sight]:
    for loss in graph.loss_ops:
        if loss.kind == "kl_div":
            source, looks = graph.origin(loss, loss.inputs[0], UNCHANGED), graph.values[loss.inputs[0]].statistics
            why = _why(source, looks)
            if why:
                yield Sight(
                    op=source if isinstance(source, Op) and source.kind not in AFFINE else loss,
                    message=f"the first argument of kl_div at {at(loss)} holds no log-probabilities: {why}",
                    evidence=(Evidence("its first argument", span(looks), "at most 0"),),
                )


def _why(source: Op | Leaf, looks: Statistics | None) -> str:
    if isinstance(source, Op) and source.kind in PROBABILITIES | SIGMOIDS:
        return f"{named(source)} made it"
    if looks is not None and looks.distribution:
        return "its rows lie in [0, 1] and sum to 1"
    if isinstance(source, Op) and source.kind in AFFINE and looks is not None and looks.high > 0:
        return f"{named(source)} made it, and it goes up to {looks.high:.3g}"
    return ""


def _step(*ends: str, looks: Statistics | None = None) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10, statistics=None if ends else looks)
    for i, end in enumerate(ends):
        out = step.like(F + end, out, statistics=looks if i == len(ends) - 1 else None)
    return step.graph(step.loss("kl_div", out, step.leaf("target", "", 8, 10)))
