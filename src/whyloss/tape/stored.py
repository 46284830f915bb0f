"""Tensors in a safetensors file: values in the order of their elements, strides and all else as a description."""

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import safetensors
import safetensors.torch
import torch

from whyloss.tape.arguments import Reader, Unwritable, device_of, dtype_of, refusal

MOST_AXES = 64
_KEPT = frozenset(
    {
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
        *(
            torch.int64,
            torch.int32,
            torch.int16,
            torch.int8,
            torch.uint8,
            torch.bool,
            torch.complex64,
            torch.complex128,
        ),
    }
)


class Stored(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What the file does not say of a tensor. `withheld`: its values are left out on purpose."""

    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    strides: tuple[int, ...] | None = None  # where it is not contiguous
    withheld: bool = False

    @property
    def bytes(self) -> int:
        return 0 if self.withheld else math.prod(_folded(self)) * dtype_of(self.dtype).itemsize


def describe(t: torch.Tensor, *, withheld: bool = False) -> Stored:
    """Unwritable for a tensor that safetensors has no place for."""
    if t.layout != torch.strided or t.is_quantized or t.is_nested or t.dtype not in _KEPT:
        what = t.dtype if t.layout == torch.strided else t.layout
        msg = f"a tensor of shape {tuple(t.shape)} and type {what}, which safetensors can't hold"
        raise Unwritable(msg)
    extent = 1 + sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True) if n)
    contiguous = t.is_contiguous() or t.numel() == 0 or extent > 2 * t.numel()
    return Stored(
        shape=tuple(t.shape),
        dtype=str(t.dtype).removeprefix("torch."),
        device=str(t.device),
        strides=None if contiguous else t.stride(),
        withheld=withheld,
    )


def values_of(t: torch.Tensor, stored: Stored) -> torch.Tensor:
    """The elements, each once, as safetensors takes them."""
    t = t.detach().resolve_conj().resolve_neg()
    kept = t[tuple(slice(0, n) for n in _folded(stored))].contiguous() if t.ndim else t
    kept = torch.view_as_real(kept) if kept.is_complex() else kept
    return kept.to("cpu", copy=True)


def write_tensors(file: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    file.touch()
    mode = file.stat().st_mode  # safetensors would leave it readable by its owner only
    safetensors.torch.save_file(dict(tensors), file)
    file.chmod(mode)


def read_tensors(file: Path, stored: Mapping[str, Stored], reader: Reader) -> dict[str, torch.Tensor]:
    """The tensors that are described, and no other; what was withheld as a tensor without values, on `meta`."""
    for key, one in stored.items():
        _check(key, one)
    try:
        with safetensors.safe_open(file, framework="pt", device="cpu") as opened:
            _check_keys(set(opened.keys()), {key for key, one in stored.items() if not one.withheld})
            return {key: _read(opened, key, one, reader) for key, one in stored.items()}
    except (OSError, safetensors.SafetensorError) as error:
        raise refusal(f"a tensors file that can't be read ({error})") from error


def _read(opened: safetensors.safe_open, key: str, stored: Stored, reader: Reader) -> torch.Tensor:
    dtype = dtype_of(stored.dtype)
    if stored.withheld:
        return torch.empty(stored.shape, dtype=dtype, device="meta")
    kept: torch.Tensor = opened.get_tensor(key)  # type: ignore[no-untyped-call]
    shape = _folded(stored)
    real, expected = (dtype.to_real(), (*shape, 2)) if dtype.is_complex else (dtype, shape)
    if kept.dtype != real or tuple(kept.shape) != expected:
        there = f"{tuple(kept.shape)} {_name(kept.dtype)}"
        raise refusal(f"the tensor {key!r} as {there}, but describes it as {expected} {_name(real)}")
    kept = torch.view_as_complex(kept) if dtype.is_complex else kept
    strides = torch.empty(shape, device="meta").stride() if stored.strides is None else stored.strides
    kept = torch.empty_strided(shape, strides, dtype=dtype).copy_(kept)  # aligned as torch does it, unlike a file
    return kept.to(reader.device(device_of(stored.device))).expand(stored.shape)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _folded(stored: Stored) -> tuple[int, ...]:
    """The shape without the repetitions of an expanded axis."""
    strides = stored.strides or (1,) * len(stored.shape)
    return tuple(1 if s == 0 and n > 1 else n for n, s in zip(stored.shape, strides, strict=True))


def _check(key: str, stored: Stored) -> None:
    if dtype_of(stored.dtype) not in _KEPT:
        raise refusal(f"the tensor {key!r} of type {stored.dtype}")
    if not is_shape(stored.shape):
        raise refusal(f"the tensor {key!r} of an impossible shape, {shown(stored.shape)}")
    if stored.strides is not None and not _is_dense(stored):
        raise refusal(f"the tensor {key!r} of impossible strides, {shown(stored.strides)}")


def is_shape(shape: tuple[int, ...]) -> bool:
    return len(shape) <= MOST_AXES and all(0 <= n < 2**48 for n in shape) and math.prod(shape) < 2**48


def _is_dense(stored: Stored) -> bool:
    """No two elements share a place, but for those of an expanded axis, and few places are empty."""
    assert stored.strides is not None
    if len(stored.strides) != len(stored.shape) or not all(0 <= s < 2**48 for s in stored.strides):
        return False
    extent = 1
    for s, n in sorted(zip(stored.strides, _folded(stored), strict=True)):
        if n > 1 and s < extent:
            return False
        extent = (n - 1) * s + extent if n > 1 else extent
    return 0 < extent <= 2 * max(1, math.prod(_folded(stored)))


def _check_keys(there: set[str], described: set[str]) -> None:
    if missing := described - there:
        raise refusal(f"no values for the tensor {min(missing)!r}")
    if more := there - described:
        raise refusal(f"values for a tensor that it does not describe, {min(more)[:60]!r}")


def shown(numbers: tuple[int, ...]) -> str:
    return str(list(numbers[:8])).replace("]", ", …]" if len(numbers) > 8 else "]")
