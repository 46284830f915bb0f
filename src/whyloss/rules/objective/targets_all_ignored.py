"""targets-all-ignored."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import CROSS_ENTROPY
from whyloss.core.run import Trace
from whyloss.core.sample_graph import ZEROS, F, SampleGraph, T, figures
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import Op, StepGraph
from whyloss.core.terms import FACTORS, terms
from whyloss.rules.recorded import Sight, at, look, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

IGNORE = -100  # torch's default ignore_index


@dataclass(frozen=True)
class TargetsAllIgnored(Rule):
    """No target of a batch counts: all are ignored, or masked out.

    ## What it detects
    In a recorded step, a cross-entropy whose targets all equal `ignore_index`, or a loss of each element that is
    multiplied by a mask of zeros; and, at observed updates, batches after which no further label had been counted.
    ## Why it matters
    The mean over no element is NaN; a sum, or a mean with a guarded divisor, is 0 and looks like perfect learning.
    Either way the batch teaches nothing.
    ## What else looks like this
    A few such batches among many, as of long prompts or short answers, and a term beside others whose labels are
    missing, are an info where the loss stays finite.
    ## What to do
    Look at where labels are masked: an answer that was cut off by a maximal length, the prompt masked together with
    the answer, `ignore_index` equal to a class that is meant, or labels that are all padding.
    """

    name = "targets-all-ignored"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-nonfinite", "loss-flat", "loss-at-baseline", "nonfinite-forward", "zero-gradient", "plateau-high"),
        *("loss-hidden-nan", "converged", "update-not-landing", "nonfinite-backward", "vanishing-gradient"),
        *("underfitting", "not-converged", "lr-too-low"),
    )
    change = "Keep at least one target in each batch: correct the mask, or skip batches that have none."
    verify = "Run again: target/count grows at every observed update."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.CrossEntropyLoss.html",)

    most: float = threshold(0.5, unit="of observed batches", why="half of the data lost is no matter of a few batches")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        empty, observed = _empty(trace)
        found = [sight for graph in trace.graphs for sight in _see(graph)]
        if empty and not found:
            yield self._counted(trace, empty, observed)
            return
        if observed and not trace.graphs:
            yield self.passed(f"{observed} observed batches all held targets that count")
            return
        graphs = len({graph.step for graph in trace.graphs for _ in _see(graph)})
        many = graphs >= self.most * len(trace.graphs)
        nan = _nonfinite(trace, tuple(g.step for g in trace.graphs if any(True for _ in _see(g))))
        beside = any(len([t for t in terms(graph) if t.live]) > 1 for graph in trace.graphs)  # other terms teach
        severity = Severity.ERROR if nan or (many and not beside) else Severity.INFO
        yield from look(self, trace, lambda graph: _see(graph, severity), "targets counted")

    def _counted(self, trace: Trace, empty: tuple[int, ...], observed: int) -> Outcome:
        nan = _nonfinite(trace, empty)
        severity = Severity.ERROR if nan or len(empty) >= self.most * observed else Severity.INFO
        return self.finding(
            f"{len(empty)} of {observed} observed batches hold no target that counts"
            + (", and the loss of such a batch is NaN" if nan else ""),
            Evidence("batches without a target", len(empty), 0, "batches", empty[:8]),
            severity=severity,
            first_step=empty[0],
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        none, some = figures(IGNORE, IGNORE, integral=True), figures(IGNORE, 7, integral=True)
        nothing = np.where(np.arange(60) % 2 == 0, 0.0, 1.0).cumsum()
        rare = np.where(np.arange(60) == 14, 0.0, 1.0).cumsum()
        return (
            fires("all targets are -100", sample_recorded(_step(none)), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step(none), loss=[math.nan]), Severity.ERROR),
            fires("all are padding", sample_recorded(_step(figures(0, 0, integral=True), ignore_index=0))),
            fires("a mask of zeros", sample_recorded(_masked(ZEROS)), Severity.ERROR),
            fires("a NaN at one of them", sample_recorded(_step(some), signals=_with_nan(rare))),
            silent("near miss: a term beside another", sample_recorded(_step(none, beside=True))),
            silent("near miss: some are ignored", sample_recorded(_step(some))),
            silent("near miss: one class only", sample_recorded(_step(figures(0, 0, integral=True)))),
            silent("near miss: a mask of some zeros", sample_recorded(_masked(figures(0, 1, zeros=0.9)))),
            silent("near miss: one batch of many, finite", sample_recorded(signals={"target/count": rare})),
            fires("every other batch", sample_recorded(signals={"target/count": nothing}, every=1)),
        )


def _see(graph: StepGraph, severity: Severity = Severity.ERROR) -> Iterator[Sight]:
    tail = {id(op) for op in graph.tail}
    for op in graph.ops:
        if op.kind in CROSS_ENTROPY and id(op) in tail:
            yield from _ignored(graph, op, severity)
        elif op.kind in FACTORS and id(op) in tail:
            yield from _masked_out(graph, op, severity)


def _ignored(graph: StepGraph, op: Op, severity: Severity) -> Iterator[Sight]:
    number = op.tensors.get("target", op.inputs[1] if len(op.inputs) > 1 else -1)
    value = graph.values.get(number)
    if value is None or value.floating or value.statistics is None:
        return
    ignored = op.arguments.get("ignore_index", IGNORE)
    if value.statistics.low == value.statistics.high == ignored:
        count = prod(value.shape)
        yield Sight(
            op=op,
            message=f"all {count} targets of {op.kind} at {at(op)} are {ignored}, which is ignored",
            evidence=(Evidence("targets that count", 0, 1, "targets"),),
            severity=severity,
        )


def _masked_out(graph: StepGraph, op: Op, severity: Severity) -> Iterator[Sight]:
    """The loss of each element times a mask."""
    for number in op.inputs:
        value = graph.values[number]
        others = [n for n in op.inputs if n != number]
        zero = value.statistics is not None and value.statistics.zeros == 1.0 and prod(value.shape) > 1
        if not zero or graph.differentiable(op, number) or not others:
            continue
        source = graph.origin(op, others[0])
        if isinstance(source, Op) and source in graph.loss_ops:
            yield Sight(
                op=op,
                message=f"the mask that {source.kind} is multiplied by at {at(op)} is 0 throughout",
                evidence=(Evidence("elements that count", 0, 1, "elements"),),
                severity=severity,
            )


def _empty(trace: Trace) -> tuple[tuple[int, ...], int]:
    """Observed updates at which no label was added, and how many were observed."""
    counted = trace.signal("target/count")
    if counted is None:
        return (), 0
    values = np.concatenate([[0.0], counted.values])
    return tuple(int(s) for s in counted.steps[np.diff(values) == 0]), len(counted)


def _nonfinite(trace: Trace, steps: tuple[int, ...]) -> bool:
    loss = trace.loss
    return loss is not None and bool(np.any(~np.isfinite(loss.values[np.isin(loss.steps, steps)])))


def _with_nan(counts: np.ndarray) -> dict[str, np.ndarray]:
    loss = np.where(np.arange(60) == 14, np.nan, 1.0)
    return {"target/count": counts, "loss/train": loss}


def _step(looks: Statistics, *, beside: bool = False, **arguments: Any) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    y = step.leaf("target", "", 8, dtype="int64", statistics=looks)
    loss = step.loss("cross_entropy", out, y, **arguments)
    other = step.loss("mse_loss", out, step.leaf("target", "", 8, 10)) if beside else loss
    return step.graph(step.like(T + "add", loss, other) if beside else loss)


def _masked(looks: Statistics) -> StepGraph:
    """(cross_entropy(..., reduction="none") * mask).sum()"""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    given = {"input": out, "target": step.leaf("target", "", 8, dtype="int64")}
    each = step.call(F + "cross_entropy", tensors=given, shape=(8,), arguments={"reduction": "none"})
    kept = step.like(T + "mul", each, step.leaf("constant", "", 8, statistics=looks))
    return step.graph(step.call(T + "sum", kept, shape=()))
