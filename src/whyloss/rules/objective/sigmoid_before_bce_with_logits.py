"""sigmoid-before-bce-with-logits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.run import Objective, Trace
from whyloss.core.sample import falling
from whyloss.core.sample_graph import F, SampleGraph, T, figures
from whyloss.core.softmax import PROBABILITIES, SIGMOIDS, UNCHANGED, sigmoid_floor
from whyloss.core.step_graph import Op, StepGraph
from whyloss.rules.recorded import Sight, at, look, named, near_floor, sample_recorded, span
from whyloss.rules.rule import Example, Rule, fires, silent

LOGISTIC = ("binary_cross_entropy_with_logits", "multilabel_soft_margin_loss")


@dataclass(frozen=True)
class SigmoidBeforeBceWithLogits(Rule):
    """A logistic loss is given probabilities where it expects logits: the sigmoid is applied twice.

    ## What it detects
    In a recorded step, a sigmoid (or softmax) whose result goes into `binary_cross_entropy_with_logits` or
    `multilabel_soft_margin_loss` through nothing but reshapes and casts.
    ## Why it matters
    Logits in [0, 1] mean probabilities between 0.5 and 0.73. A negative example costs ln 2 at the least, so that the
    loss stands at 0.69 times the share of negatives, whatever is learned, and gradients are small.
    ## What else looks like this
    A sigmoid beside the loss, as in a focal loss or a metric, while the loss itself gets the logits; probabilities as
    the target. A run that comes near the least possible loss all the same gets an info.
    ## What to do
    Remove the sigmoid from the model, or use `binary_cross_entropy`.
    """

    name = "sigmoid-before-bce-with-logits"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "not-converged", "lr-too-low"),
        *("lr-limited-plateau", "vanishing-gradient", "saturated-activation", "class-imbalance"),
    )
    change = "Remove this sigmoid, or use binary_cross_entropy, which takes probabilities."
    verify = "Run again: what the loss is given takes negative values, and it falls below ln 2 for negative examples."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.BCEWithLogitsLoss.html",)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        floors = [s.floor for graph in trace.graphs for s in _see(graph)]
        known = [floor for floor in floors if floor is not None]
        floor = sum(known) / len(known) if known and len(known) == len(floors) else None  # batches differ in positives

        def excuse(sight: Sight) -> str:
            return near_floor(trace, replace(sight, floor=floor))

        yield from look(self, trace, _see, "no logistic loss was given probabilities", excuse)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        binary: dict[str, Any] = {"objectives": (Objective(kind=LOGISTIC[0]),), "signals": {"target/entropy": 0.69}}
        plateau, low = falling(200, 0.75, 0.64), falling(200, 0.75, 0.51)
        return (
            fires("sigmoid before it", sample_recorded(_step("sigmoid"), loss=plateau, **binary), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step("sigmoid"), loss=[0.7], **binary)),
            fires("through a squeeze", sample_recorded(_step("sigmoid", T + "squeeze"), loss=plateau, **binary)),
            fires("softmax before it", sample_recorded(_step("softmax"), loss=plateau, **binary)),
            silent("near miss: logits", sample_recorded(_step("relu"), loss=plateau, **binary)),
            silent("near miss: scaled by a temperature", sample_recorded(_step("sigmoid", T + "mul"), loss=plateau)),
            silent("near miss: binary_cross_entropy", sample_recorded(_step("sigmoid", loss="binary_cross_entropy"))),
            silent("near miss: it learns to its floor", sample_recorded(_step("sigmoid"), loss=low, **binary)),
        )


def _see(graph: StepGraph) -> Iterator[Sight]:
    for loss in graph.loss_ops:
        if loss.kind not in LOGISTIC:
            continue
        number = loss.inputs[0]
        source = graph.origin(loss, number, UNCHANGED)
        if isinstance(source, Op) and source.kind in SIGMOIDS | PROBABILITIES:
            floor = _floor(graph, loss)
            yield Sight(
                op=source,
                message=f"{loss.kind} at {at(loss)} is given probabilities: {named(source)} stands before it",
                evidence=(
                    Evidence("what it takes for logits", span(graph.values[number].statistics), "unbounded"),
                    *((Evidence("the least loss that it can reach", floor, 0.0, "nats"),) if floor else ()),
                ),
                floor=floor,
            )


def _floor(graph: StepGraph, loss: Op) -> float | None:
    """None where targets are not known, or examples are weighted."""
    target = graph.target(loss)
    looks = graph.values[target].statistics if target is not None else None
    if looks is None or {"weight", "pos_weight"} & loss.tensors.keys() or not 0 <= looks.low <= looks.high <= 1:
        return None
    return sigmoid_floor(looks.mean)


def _step(*ends: str, loss: str = LOGISTIC[0]) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 1)
    for end in ends:
        out = step.like(end if "." in end else F + end, out)
    return step.graph(step.loss(loss, out, step.leaf("target", "", 8, 1, statistics=figures(0, 1, integral=True))))
