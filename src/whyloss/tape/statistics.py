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

    figures: torch.Tensor | tuple[float, ...] | None

    def read(self) -> Statistics:
        if self.figures is None:
            return NOTHING
        figures = self.figures.tolist() if isinstance(self.figures, torch.Tensor) else self.figures
        low, high, mean, std, zeros, nonfinite, distribution, integral, least, most = figures
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
    """The figures of a tensor, computed where it lies. `columns`: the std of its columns, too."""
    if t.layout != torch.strided or t.numel() == 0 or t.is_quantized or t.is_meta:
        return Pending(None)
    with torch.no_grad(), torch.inference_mode(False):
        t = t.abs() if t.is_complex() else t
        return Pending(_at_once(t, columns) if t.device.type == "cpu" else _later(t, columns))


def _at_once(t: torch.Tensor, columns: bool) -> tuple[float, ...]:
    """On CPU, where reading a number costs nothing and each says what else has to be looked at."""
    whole = not t.is_floating_point()
    small = t.numel() <= MOST_ROWS
    t = t.to(torch.uint8) if t.dtype == torch.bool else t
    low, high = (x.item() for x in torch.aminmax(t))
    x = t.double() if whole else t.float() if t.dtype.itemsize < 4 else t
    finite = math.isfinite(low) and math.isfinite(high)
    mean = _mean(x, finite)
    zeros = 1.0 - torch.count_nonzero(t).item() / t.numel() if not (low > 0 or high < 0) else 0.0
    rows = not whole and small and t.ndim > 1 and t.shape[-1] > 1 and low >= 0 and high <= 1
    return (
        low,
        high,
        mean,
        _std(x, mean),
        zeros,
        0 if finite else int((~torch.isfinite(x)).sum()),
        rows and _off_one(t) < _tolerance(t),
        _integral(t) if small and not whole else whole,
        *(_scales(x) if columns and not whole and t.ndim == 2 and len(t) > 1 and small else (math.nan, math.nan)),
    )


def _mean(x: torch.Tensor, finite: bool) -> float:
    total = float(x.sum())
    if finite and not math.isfinite(total):
        total = float(x.sum(dtype=torch.float64))
    return total / x.numel()


def _std(x: torch.Tensor, mean: float) -> float:
    """Of the population. torch.var takes 30 times as long as a norm; a norm cancels where the mean is large."""
    square = float(torch.linalg.vector_norm(x)) ** 2 / x.numel()
    variance = square - mean * mean
    if math.isfinite(variance) and variance > 1e-3 * square:
        return math.sqrt(variance)
    return float(x.double().std(correction=0))


def _scales(x: torch.Tensor) -> tuple[float, float]:
    """Smallest and largest std of a column: torch.std along the first axis takes 15 times as long."""
    least, most = (x - x.mean(0)).square_().mean(0).sqrt_().aminmax()
    return float(least), float(most)


def _integral(t: torch.Tensor) -> bool:
    parts = (t[:1], t) if t.ndim else (t,)  # the first row mostly decides
    return all(bool((part == part.round()).all()) for part in parts)


def _off_one(t: torch.Tensor) -> float:
    return float((t.sum(-1, dtype=torch.float64) - 1).abs().amax())


def _tolerance(t: torch.Tensor) -> float:
    return 1e-4 if t.dtype.itemsize >= 4 else 1e-2


def _later(t: torch.Tensor, columns: bool) -> torch.Tensor:
    """The same on a device that is not waited for."""
    zeros = 1.0 - torch.count_nonzero(t) / t.numel()
    whole = not t.is_floating_point()
    small = t.numel() <= MOST_ROWS
    t = t.float() if whole and (t.dtype == torch.bool or small) else t
    low, high = torch.aminmax(t)
    x = t if t.is_floating_point() else t.double()
    nan = x.new_full((), math.nan, dtype=torch.float64)
    least, most, integral = nan, nan, nan.new_full((), whole)
    if small and not whole:
        integral = (t == t.round()).all()
    if columns and small and not whole and t.ndim == 2 and len(t) > 1:
        least, most = t.double().std(0, correction=0).aminmax()
    distribution = nan.new_zeros(())
    if not whole and small and t.ndim > 1 and t.shape[-1] > 1:
        off: torch.Tensor = (t.sum(-1, dtype=torch.float64) - 1).abs().amax()
        distribution = (low >= 0) & (high <= 1) & (off < _tolerance(t))
    mean, std = x.mean(dtype=torch.float64), x.float().std(correction=0)
    found = (low, high, mean, std, zeros, (~torch.isfinite(x)).sum(), distribution, integral, least, most)
    return torch.stack([f.double() for f in found])
