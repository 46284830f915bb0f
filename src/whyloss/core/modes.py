"""Calls of a recorded step that do something else in training than in evaluation."""

from dataclasses import dataclass
from math import prod

from whyloss.core.step_graph import DROPOUTS, Op, StepGraph


@dataclass(frozen=True)
class ModeCall:
    """`on`: it did what is done in training: drop, or normalise with the statistics of the batch."""

    op: Op
    on: bool
    values: int | None = None  # that one channel is normalised over; None for dropout

    @property
    def name(self) -> str:
        return self.op.module or self.op.kind

    @property
    def norm(self) -> bool:
        return self.values is not None


def mode_calls(graph: StepGraph) -> tuple[ModeCall, ...]:
    return tuple(call for op in graph.ops if (call := _mode_call(graph, op)) is not None)


def _mode_call(graph: StepGraph, op: Op) -> ModeCall | None:
    training = op.arguments.get("training")
    if not isinstance(training, bool) or not op.inputs:
        return None
    if op.kind == "batch_norm":
        shape = graph.values[op.tensors.get("input", op.inputs[0])].shape
        return ModeCall(op, training, prod(shape) // max(shape[1], 1)) if len(shape) > 1 else None
    drops = op.arguments.get("p" if op.kind in DROPOUTS else "dropout_p")
    known = op.kind in DROPOUTS or op.kind == "multi_head_attention_forward"
    return ModeCall(op, training) if known and isinstance(drops, int | float) and drops > 0 else None
