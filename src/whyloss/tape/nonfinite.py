"""Looks at the non-finite elements of one tensor."""

import torch

from whyloss.core.location import NonFinite, Range

FEW = 5  # rows and columns that are named
_LAYOUTS = (torch.strided, torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)


def followed(tensor: torch.Tensor) -> bool:
    """Whether it can hold a non-finite value that we can look at."""
    inexact = tensor.is_floating_point() or tensor.is_complex()
    return inexact and tensor.layout in _LAYOUTS and tensor.device.type != "meta" and tensor.numel() > 0


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or the values that a sparse one stores."""
    if tensor.layout == torch.strided:
        return tensor
    return tensor._values() if tensor.layout == torch.sparse_coo else tensor.values()


def values(tensor: torch.Tensor) -> torch.Tensor:
    """What is stored, float8 as float32, which alone can be summed."""
    value = stored(tensor)
    return value.float() if value.is_floating_point() and value.element_size() == 1 else value


def is_nonfinite(tensor: torch.Tensor) -> bool:
    """Whether an element is NaN or infinite. The sum tells it in most cases at the speed of memory."""
    if not followed(tensor):
        return False
    value = values(tensor)
    return not bool(value.sum().isfinite()) and not bool(value.isfinite().all())


def nonfinite(tensor: torch.Tensor) -> NonFinite:
    """Counts, and the first rows and columns that hold one."""
    value = values(tensor).detach()
    bad = ~value.isfinite()
    real = value.abs() if value.is_complex() else value
    rows, bad_rows = _indices(bad, 0)
    columns, bad_columns = _indices(bad, -1) if bad.ndim > 1 else ((), 0)
    return NonFinite(
        nan=int(value.isnan().sum()),
        positive=int((real == torch.inf).sum()),
        negative=int((real == -torch.inf).sum()),
        elements=value.numel(),
        rows=rows,
        bad_rows=bad_rows,
        of_rows=bad.shape[0] if bad.ndim else 0,
        columns=columns,
        bad_columns=bad_columns,
        of_columns=bad.shape[-1] if bad.ndim > 1 else 0,
    )


def ranged(tensor: torch.Tensor) -> Range:
    """Of the finite elements; of a complex tensor, their absolute values."""
    value = tensor.detach().abs() if tensor.is_complex() else tensor.detach()
    finite = value[value.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (None, None)
    kind = str(tensor.dtype).removeprefix("torch.")
    return Range(low=low, high=high, dtype=kind, shape=tuple(tensor.shape), nonfinite=value.numel() - finite.numel())


def number(x: float) -> Range:
    """Of a Python number."""
    finite = float(x) if x - x == 0 else None
    return Range(low=finite, high=finite, dtype="number", shape=(), nonfinite=int(finite is None))


def _indices(bad: torch.Tensor, axis: int) -> tuple[tuple[int, ...], int]:
    if bad.ndim == 0:
        return (), 0
    found = bad.movedim(axis, 0).reshape(bad.shape[axis], -1).any(1).nonzero().flatten().tolist()
    return tuple(found[:FEW]), len(found)
