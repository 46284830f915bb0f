"""What the autograd graph of a loss says, read before backward frees it: the leaves it reaches and the loss ops it has.

Nothing here runs a hook of the user's: a saved tensor that has an unpack hook (checkpointing, offloading) is left alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from whyloss.core.run import Objective

MOST_NODES = 50_000

KINDS = {
    "NllLossBackward0": "cross_entropy",
    "NllLoss2DBackward0": "cross_entropy",
    "MseLossBackward0": "mse_loss",
    "BinaryCrossEntropyBackward0": "binary_cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "KlDivBackward0": "kl_div",
}
REDUCTIONS = ("none", "mean", "sum")
SCALING = (
    "MulBackward0",
    "DivBackward0",
    "NegBackward0",
    "ToCopyBackward0",
    "MeanBackward0",
    "SumBackward0",
    "MulBackward1",
)


@dataclass(frozen=True)
class LossOp:
    """A loss op of the graph, with its saved prediction and target where they may be read."""

    objective: Objective
    prediction: torch.Tensor | None
    target: torch.Tensor | None
    ignore_index: int = -100

    def value(self) -> torch.Tensor | None:
        """The op recomputed on its own, with mean reduction."""
        if self.prediction is None or self.target is None:
            return None
        if self.objective.kind == "cross_entropy":  # the saved prediction is the log-softmax
            return F.nll_loss(self.prediction, self.target, ignore_index=self.ignore_index)
        return torch.as_tensor(getattr(F, self.objective.kind)(self.prediction, self.target))


def leaves(root: torch.autograd.graph.Node | None) -> list[torch.Tensor] | None:
    """The leaf tensors that require grad and are reached from the loss; None for a graph too large to walk."""
    out = []
    for count, node in enumerate(_walk(root)):
        if count >= MOST_NODES:
            return None
        variable = getattr(node, "variable", None)
        if variable is not None:
            out.append(variable)
    return out


def loss_ops(root: torch.autograd.graph.Node | None, depth: int = 12) -> list[LossOp]:
    """The loss ops nearest to the loss, at most `depth` nodes away. Empty where the loss is written by hand."""
    found: list[tuple[Any, bool]] = []
    frontier: list[tuple[Any, bool]] = [(root, True)] if root is not None else []
    seen: set[Any] = set()
    for _ in range(depth):
        following: list[tuple[Any, bool]] = []
        for node, direct in frontier:
            if node in seen:
                continue
            seen.add(node)
            if node.name() in KINDS:
                found.append((node, direct))
                continue
            inputs = [n for n, _ in node.next_functions if n is not None]
            direct = direct and node.name() in SCALING and len(inputs) == 1
            following += [(n, direct) for n in inputs]
        frontier = following[:256]
    return [_loss_op(node, direct, len(found) == 1) for node, direct in found]


def _loss_op(node: Any, direct: bool, single: bool) -> LossOp:
    kind = KINDS[node.name()]
    classes = None
    if kind == "cross_entropy":
        inputs = [n for n, _ in node.next_functions if n is not None]
        if inputs and inputs[0].name() != "LogSoftmaxBackward0":
            kind = "nll_loss"
        classes = _width(inputs)
    reduction = getattr(node, "_saved_reduction", 1)
    objective = Objective(
        kind=kind,
        classes=classes,
        reduction=REDUCTIONS[reduction] if reduction in (0, 1, 2) else "mean",
        direct=direct,
        single=single,
    )
    return LossOp(objective, _saved(node, "self"), _saved(node, "target"), _ignore_index(node))


def _ignore_index(node: Any) -> int:
    """torch hands the attribute out as unsigned: -100 arrives as 2**64 - 100."""
    index = int(getattr(node, "_saved_ignore_index", -100))
    return index - 2**64 if index >= 2**63 else index


def _width(inputs: list[Any]) -> int | None:
    """Size of the class dimension of what feeds the negative log-likelihood: [N, C] or [N, C, d1, …]."""
    metadata = inputs[0]._input_metadata if inputs else None
    shape = tuple(metadata[0].shape) if metadata else ()
    return int(shape[1] if len(shape) > 1 else shape[0]) if shape else None


def _saved(node: Any, name: str) -> torch.Tensor | None:
    saved = getattr(node, f"_raw_saved_{name}", None)
    if saved is None or not hasattr(saved, "unpack_hook") or saved.unpack_hook is not None:
        return None
    value = saved.data
    return value.detach() if isinstance(value, torch.Tensor) else None


def _walk(root: Any) -> Iterator[Any]:
    stack, seen = [root] if root is not None else [], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += [n for n, _ in node.next_functions if n is not None]
