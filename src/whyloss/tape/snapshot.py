"""Copies of tensors, and whether a tensor is still what it was."""

import torch


def snapshot(t: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides: kernels choose their way by them."""
    with torch.inference_mode(False):
        t = t.detach()
        if t.layout != torch.strided or t.numel() == 0:
            return t.clone()
        folded = tuple(
            slice(0, 1) if s == 0 and n > 1 else slice(None) for s, n in zip(t.stride(), t.shape, strict=True)
        )
        if slice(0, 1) in folded:
            return snapshot(t[folded]).expand(t.shape)
        if t.is_contiguous() or t.is_contiguous(memory_format=torch.preserve_format) or _extent(t) > 2 * t.numel():
            return t.clone()
        return torch.empty_strided(t.size(), t.stride(), dtype=t.dtype, device=t.device).copy_(t)


def _extent(t: torch.Tensor) -> int:
    return 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal in shape, type and every value; NaN equals NaN."""
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout or a.device != b.device:
        return False
    if a.is_meta:
        return True
    a, b = a.detach(), b.detach()
    if a.layout != torch.strided:
        return bool(torch.equal(a.to_dense(), b.to_dense()))
    if torch.equal(a, b):
        return True
    inexact = a.is_floating_point() or a.is_complex()
    return inexact and bool(((a == b) | ((a != a) & (b != b))).all())


def version_of(t: torch.Tensor) -> int:
    return -1 if t.is_inference() else t._version


def storage_of(t: torch.Tensor) -> int:
    """The same number for tensors that share memory."""
    try:
        return int(t.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):  # sparse, or wrapped
        return -id(t)
