"""A number for the bits of a tensor, so that two can be compared without keeping either."""

import zlib
from functools import lru_cache

import torch

CHUNK = 2**18
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def fingerprint(t: torch.Tensor) -> int:
    """Changes with every bit, the order of elements, shape and dtype; the same bits give the same number anywhere.

    A sum of the bits, each element weighted with an odd number of its own, modulo 2**64.
    """
    with torch.no_grad():
        head = zlib.crc32(f"{tuple(t.shape)} {t.dtype}".encode())
        flat = _bits(t.detach())
        total = 0
        for start in range(0, flat.numel(), CHUNK):
            part = flat[start : start + CHUNK].long()
            weights = _weights(str(part.device))[: part.numel()]
            total = (total * 31 + int((part * weights).sum())) % 2**64
        return (total + head) % 2**64


def _bits(t: torch.Tensor) -> torch.Tensor:
    if t.layout != torch.strided:
        t = t.to_dense()
    if t.is_complex():
        t = torch.view_as_real(t.resolve_conj())
    if t.dtype == torch.bool:
        t = t.to(torch.int8)
    return t.contiguous().reshape(-1).view(_INTEGERS[t.dtype.itemsize])


@lru_cache(maxsize=4)
def _weights(device: str) -> torch.Tensor:
    odd = torch.arange(CHUNK, dtype=torch.int64, device=device) * 2 + 1
    return odd * 0x9E3779B1 | 1
