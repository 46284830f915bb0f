"""What the targets of the loss say of its baseline: label entropy and target variance, pooled over observed steps."""

import torch

from whyloss.observe.graph import LossOp
from whyloss.observe.rows import Row

LABELS = (
    "target/entropy",
    "target/batch_entropy",
    "target/share",
    "target/classes",
    "target/lowest",
    "target/highest",
    "target/count",
)
MOST_CLASSES = 100  # of which the predictions are counted, too
MOST_ELEMENTS = 2**20  # of one example; larger targets are pooled as one


class Targets:
    """Pools on the device; nothing is read back until a row is fetched."""

    def __init__(self) -> None:
        self._counts: torch.Tensor | None = None  # how often each class was seen; for BCE: negative, positive mass
        self._batch: torch.Tensor | None = None  # the counts since the last row
        self._named: torch.Tensor | None = None  # how often each class was predicted since the last row
        self._sums: torch.Tensor | None = None  # [count, Σ, Σ²] of (target − first target), per element of an example
        self._shift: torch.Tensor | None = None

    @torch.no_grad()
    def add(self, ops: list[LossOp]) -> None:
        for op in ops:
            if op.target is None or not op.target.numel():
                continue
            if op.objective.classes and not op.target.is_floating_point():
                self._count(op.target, op.objective.classes, op.ignore_index)
                self._count_predictions(op)
            elif op.objective.kind.startswith("binary_cross_entropy"):
                positive = op.target.double().sum()
                self._pool_counts(torch.stack([op.target.numel() - positive, positive]))
                self._count_predictions(op)
            elif op.objective.kind == "mse_loss":
                self._moments(op.target)

    def _count(self, target: torch.Tensor, classes: int, ignore_index: int) -> None:
        ids = target.reshape(-1)
        keep = ((ids != ignore_index) & (ids >= 0) & (ids < classes)).double()
        self._pool_counts(_occurrences(ids.clamp(0, classes - 1), keep, classes))

    def _count_predictions(self, op: LossOp) -> None:
        """The likeliest class of each; of one output, which side of one half it is on."""
        given, classes = op.prediction, op.objective.classes
        if given is None:
            return
        if op.objective.kind.startswith("binary_cross_entropy"):
            positive = (given > (0.0 if op.objective.kind.endswith("logits") else 0.5)).sum().double()
            named = torch.stack([given.numel() - positive, positive])
        elif classes is not None and classes <= MOST_CLASSES and given.ndim > 1 and given.shape[1] == classes:
            ids = given.argmax(1).reshape(-1)
            named = _occurrences(ids, torch.ones_like(ids, dtype=torch.float64), classes)
        else:
            return
        self._named = _pooled(self._named, named)

    def _pool_counts(self, counts: torch.Tensor) -> None:
        self._counts, self._batch = _pooled(self._counts, counts), _pooled(self._batch, counts)

    def _moments(self, target: torch.Tensor) -> None:
        flat = target.double().reshape(target.shape[0] if target.ndim else 1, -1)
        flat = flat.reshape(-1, 1) if flat.shape[1] > MOST_ELEMENTS else flat
        if self._shift is None or self._shift.shape != flat[:1].shape:
            self._shift, self._sums = (
                flat[:1].clone(),
                torch.zeros(3, flat.shape[1], dtype=torch.float64, device=flat.device),
            )
        assert self._sums is not None
        away = flat - self._shift
        self._sums += torch.stack([torch.full_like(away[0], len(away)), away.sum(0), (away * away).sum(0)])

    def _labels(self, counts: torch.Tensor) -> torch.Tensor:
        """In the order of LABELS."""
        share = counts / counts.sum().clamp_min(1)
        batch = self._batch / self._batch.sum().clamp_min(1) if self._batch is not None else share
        seen = (counts > 0).double()
        places = torch.arange(len(counts), dtype=torch.float64, device=counts.device)
        found = (
            torch.special.entr(share).sum(),
            torch.special.entr(batch).sum(),
            share.max(),
            seen.sum(),
            torch.where(counts > 0, places, float(len(counts))).min(),
            (places * seen).max(),
            counts.sum(),
        )
        return torch.stack(found)

    @torch.no_grad()
    def put(self, row: Row, columns: dict[str, int]) -> None:
        if self._counts is not None:
            row.later([columns[c] for c in LABELS], self._labels(self._counts))
            self._batch = None
            if self._named is not None and self._named.shape == self._counts.shape:
                share = self._named[self._counts.argmax()] / self._named.sum().clamp_min(1)
                row.later([columns["prediction/share"]], share)
            self._named = None
        if self._sums is not None:
            count, total, square = self._sums
            row.later([columns["target/variance"]], (square / count - (total / count) ** 2).clamp_min(0).mean())


def _occurrences(ids: torch.Tensor, weights: torch.Tensor, classes: int) -> torch.Tensor:
    """[classes]: the sum of the weights of each id."""
    return torch.zeros(classes, dtype=torch.float64, device=ids.device).scatter_add_(0, ids, weights)


def _pooled(counts: torch.Tensor | None, more: torch.Tensor) -> torch.Tensor:
    """Begins anew where the number of classes is another one."""
    return counts + more if counts is not None and counts.shape == more.shape else more
