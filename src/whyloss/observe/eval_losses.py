"""The loss functions of torch between updates: what a script computes of its evaluation."""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from whyloss.observe.activations import Guard

KINDS = (
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
)
MOST = 4096  # values of one sweep


class EvalLosses:
    """In place from an update to the next training pass: `F.mse_loss(model(x), y)` looks the loss up before the pass.

    A training pass takes it out before any loss of training runs, so that recordings and traces never meet it.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._originals = {kind: getattr(F, kind) for kind in KINDS}
        self._ours = {kind: self._around(kind, original) for kind, original in self._originals.items()}
        self._inside = self.off = False
        self._values: list[tuple[str, torch.Tensor, int]] = []

    def watch(self) -> None:
        self._swap(self._originals, {} if self.off else self._ours)

    def leave(self) -> None:
        self._swap(self._ours, self._originals)

    def _swap(self, there: dict[str, Any], instead: dict[str, Any]) -> None:
        """What somebody else has put there stays."""
        for kind, function in instead.items():
            if vars(F)[kind] is there[kind]:
                setattr(F, kind, function)

    def forget(self) -> None:
        """What was seen so far is of something else."""
        self._values = []

    def take(self) -> tuple[float | None, int]:
        """The mean of the kind that was called first, weighted by examples, and how many calls of it there were; then
        it begins anew. None without any. Waits for the device."""
        values, self._values = self._values, []
        mine = [(value, n) for kind, value, n in values if kind == values[0][0]]
        if not mine:
            return None, 0
        numbers = torch.stack([value.double().reshape(()) for value, _ in mine]).tolist()
        examples = sum(n for _, n in mine)
        return sum(v * n for v, (_, n) in zip(numbers, mine, strict=True)) / examples, len(mine)

    def _around(self, kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return original(*args, **kwargs)
            self._inside = True
            try:
                result = original(*args, **kwargs)
            finally:
                self._inside = False
            self._guard(self._note, kind, result, args, kwargs)
            return result

        return call

    def _note(self, kind: str, result: Any, args: Any, kwargs: Any) -> None:
        """Of a pass that was made without gradients; the loss may be computed where they are on again."""
        if len(self._values) >= MOST or not isinstance(result, torch.Tensor):
            return
        if result.requires_grad or result.numel() != 1:
            return
        given = args[0] if args else kwargs.get("input")
        n = max(len(given), 1) if isinstance(given, torch.Tensor) and given.ndim else 1
        summed = kwargs.get("reduction", "mean") == "sum" or kwargs.get("size_average") is False
        self._values.append((kind, result.detach() / n if summed else result.detach(), n))
