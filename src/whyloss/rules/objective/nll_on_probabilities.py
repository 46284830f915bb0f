"""nll-on-probabilities."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Trace
from whyloss.core.sample_graph import F, SampleGraph, figures
from whyloss.core.softmax import PROBABILITIES, SIGMOIDS, UNCHANGED, classes_axis
from whyloss.core.step_graph import Op, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, sample_recorded, span
from whyloss.rules.rule import Example, Rule, fires, silent


@dataclass(frozen=True)
class NllOnProbabilities(Rule):
    """The negative log-likelihood is given probabilities: the logarithm is missing.

    ## What it detects
    In a recorded step, a softmax or sigmoid whose result goes into `nll_loss` through nothing but reshapes and casts;
    or, whatever made them, rows that all lie in [0, 1] and sum to 1. Log-probabilities are never above 0.
    ## Why it matters
    The loss is then minus the mean probability of the right class, between -1 and 0. It falls, and accuracy may rise,
    but examples that are badly wrong get next to no gradient, and figures can't be compared with any other's.
    ## What else looks like this
    A negative loss is no fault by itself: likelihoods of densities are negative where the density is above 1, and
    contrastive and policy losses take any sign. Only what `nll_loss` was given counts here.
    ## What to do
    Use `log_softmax` in place of the softmax, or give the logits to `cross_entropy`.
    """

    name = "nll-on-probabilities"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "lr-too-low"),
        *("loss-off-baseline", "loss-wrong-value", "vanishing-gradient", "loss-sign"),
    )
    change = "Use log_softmax in place of this softmax, or give the logits to cross_entropy."
    verify = "Run again: the first loss is near ln C, and never below 0."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.NLLLoss.html",)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        yield from look(self, trace, _see, "no nll_loss was given probabilities")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        return (
            fires("softmax and nll_loss", sample_recorded(_step("softmax")), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step("softmax"), loss=[-0.1]), Severity.ERROR),
            fires("rows that sum to 1, by hand", sample_recorded(_step("mine", rows=True)), Severity.ERROR),
            silent("near miss: log_softmax", sample_recorded(_step("log_softmax"))),
            silent("near miss: the log of a softmax", sample_recorded(_step("softmax", "log"))),
            silent("near miss: cross-entropy on logits", sample_recorded(_step(loss="cross_entropy"))),
            silent("near miss: a negative density", sample_recorded(_step(loss="gaussian_nll_loss"))),
        )


def _see(graph: StepGraph) -> Iterator[Sight]:
    for loss in graph.loss_ops:
        if loss.kind != "nll_loss":
            continue
        number = loss.inputs[0]
        source, value = graph.origin(loss, number, UNCHANGED), graph.values[number]
        made = isinstance(source, Op) and source.kind in PROBABILITIES | SIGMOIDS
        looks = value.statistics
        rows = looks is not None and looks.distribution and len(value.shape) - 1 == classes_axis(value.shape)
        if made or rows:
            why = f"{named(source)} stands before it" if made else "every row lies in [0, 1] and sums to 1"
            yield Sight(
                op=source if made and isinstance(source, Op) else loss,
                message=f"nll_loss at {at(loss)} is given probabilities and not their logarithms: {why}",
                evidence=(Evidence("what it takes for log-probabilities", span(looks), "at most 0"),),
            )


def _step(*ends: str, loss: str = "nll_loss", rows: bool = False) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    for end in ends:
        out = step.like(F + end, out, statistics=figures(0.01, 0.4, 0.1, distribution=True) if rows else None)
    return step.graph(step.loss(loss, out, step.leaf("target", "", 8, dtype="int64")))
