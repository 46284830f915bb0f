"""Statistics of a tensor without waiting for its device: they are read when the recording is over."""

import math
from dataclasses import dataclass

import torch

from whyloss.core.statistics import Statistics

MOST_ROWS = 2**20  # elements up to which rows and columns are looked at, too
NOTHING = Statistics(low=math.nan, high=math.nan, mean=math.nan, std=math.nan, zeros=math.nan, nonfinite=0)


@dataclass(frozen=True, slots=True)
class Pending:
    """Figures that may still be on the device, in the order of `read`."""

    figures: torch.Tensor | None

    def read(self) -> Statistics:
        if self.figures is None:
            return NOTHING
        low, high, mean, std, zeros, nonfinite, distribution, integral, least, most = self.figures.tolist()
        return Statistics(
            low=low,
            high=high,
            mean=mean,
            std=std,
            zeros=zeros,
            nonfinite=int(nonfinite),
            distribution=bool(distribution),
            integral=bool(integral),
            scales=None if math.isnan(least) else (least, most),
        )


def look(t: torch.Tensor, *, columns: bool = False) -> Pending:
    """The figures of a tensor, computed where it lies. `columns`: the std of its columns, and whole numbers, too."""
    if t.layout != torch.strided or t.numel() == 0 or t.is_quantized:
        return Pending(None)
    with torch.no_grad(), torch.inference_mode(False):
        return Pending(_figures(t.abs() if t.is_complex() else t, columns))


def _figures(t: torch.Tensor, columns: bool) -> torch.Tensor:
    zeros = 1.0 - torch.count_nonzero(t) / t.numel()
    whole = not t.is_floating_point()
    if whole:
        t = t.float() if t.dtype == torch.bool or t.numel() <= MOST_ROWS else t
    low, high = torch.aminmax(t)
    x = t if t.is_floating_point() else t.double()
    mean = x.mean(dtype=torch.float64)
    std = _std(x, mean)
    nonfinite = _nonfinite(x, low, high)
    rows = not whole and t.ndim > 1 and t.numel() <= MOST_ROWS and t.shape[-1] > 1
    nan = mean.new_full((), math.nan)
    least, most = nan, nan
    if columns and not whole and t.ndim == 2 and len(t) > 1 and t.numel() <= MOST_ROWS:
        least, most = t.double().std(0, correction=0).aminmax()
    integral = (t == t.round()).all() if columns and not whole and t.numel() <= MOST_ROWS else nan.new_full((), whole)
    found = (low, high, mean, std, zeros, nonfinite, _distribution(t, low, high) if rows else nan.new_zeros(()))
    return torch.stack([f.double() for f in (*found, integral, least, most)])


def _std(x: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Of the population. On CPU torch.var takes 30 times as long as a norm; a norm cancels where the mean is large."""
    if x.device.type != "cpu" or x.dtype not in (torch.float32, torch.float64):
        return x.float().std(correction=0)
    square: torch.Tensor = torch.linalg.vector_norm(x).double().square() / x.numel()
    variance = square - mean.square()
    if variance > 1e-3 * square:
        return variance.sqrt()
    return x.double().std(correction=0)


def _nonfinite(x: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Both extremes are finite only where every element is."""
    if x.device.type == "cpu" and math.isfinite(low) and math.isfinite(high):
        return torch.zeros((), dtype=torch.float64)
    return (~torch.isfinite(x)).sum()


def _distribution(t: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    inside: torch.Tensor = (low >= 0) & (high <= 1)
    if t.device.type == "cpu" and not inside:
        return inside
    tolerance = 1e-4 if t.dtype.itemsize >= 4 else 1e-2
    off: torch.Tensor = (t.sum(-1, dtype=torch.float64) - 1).abs().amax()
    return torch.logical_and(inside, off < tolerance)
