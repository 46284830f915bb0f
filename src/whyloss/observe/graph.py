"""What the autograd graph of a loss says, read before backward frees it: the leaves it reaches, the loss ops it has.

Nothing here runs a hook of the user's: a saved tensor with an unpack hook (checkpointing, offloading) is left alone.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
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
RECOMPUTED = ("mse_loss", "binary_cross_entropy", "binary_cross_entropy_with_logits")  # the others have parameters
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
        """The op recomputed on its own, with mean reduction and no weights. None where that can't be done."""
        if self.prediction is None or self.target is None:
            return None
        kind = self.objective.kind
        with suppress(RuntimeError):
            if kind in ("cross_entropy", "nll_loss"):  # the saved prediction is the log-softmax
                return F.nll_loss(self.prediction, self.target, ignore_index=self.ignore_index)
            if kind in RECOMPUTED:
                return torch.as_tensor(getattr(F, kind)(self.prediction, self.target))
        return None

    def count(self) -> torch.Tensor | None:
        """How many targets go into its mean. None where it has no mean, or weighs them."""
        if self.target is None or self.objective.reduction != "mean":
            return None
        if self.objective.kind in ("cross_entropy", "nll_loss"):
            return None if self.target.is_floating_point() else (self.target != self.ignore_index).sum()
        return torch.tensor(float(self.target.numel()), device="cpu")


def leaves(roots: Iterable[Any]) -> tuple[list[torch.Tensor], bool]:
    """The leaf tensors that require grad and are reached from these nodes, and whether the whole graph was walked."""
    out: list[torch.Tensor] = []
    for count, node in enumerate(_walk(roots)):
        if count >= MOST_NODES:
            return out, False
        if type(node).__name__ == "AccumulateGrad":
            out.append(node.variable)
    return out, True


def nodes(tensors: Iterable[Any]) -> list[Any]:
    """The nodes that a backward pass of these tensors starts from."""
    found = []
    for t in tensors:
        if isinstance(t, torch.Tensor) and t.requires_grad:
            found.append(t.grad_fn if t.grad_fn is not None else torch.autograd.graph.get_gradient_edge(t).node)
    return found


def size(tensors: Iterable[Any]) -> int:
    """How many nodes the graph of these tensors has; no more than MOST_NODES are counted."""
    return sum(1 for _ in islice(_walk(nodes(tensors)), MOST_NODES))


def loss_ops(roots: Iterable[Any], depth: int = 12) -> list[LossOp]:
    """The loss ops nearest to the loss, at most `depth` nodes away. Empty where the loss is written by hand."""
    found: list[tuple[Any, bool]] = []
    frontier: list[tuple[Any, bool]] = [(root, True) for root in roots]
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


def _walk(roots: Iterable[Any]) -> Iterator[Any]:
    stack, seen = list(roots), set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        stack += [n for n, _ in node.next_functions if n is not None]
