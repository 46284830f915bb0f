"""How gradients and activations change from layer to layer: a profile over depth, and its slope."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.run import Module, Run, Tensor, Trace
from whyloss.core.sample import sample_modules, sample_run, sample_tensors
from whyloss.core.series import Floats

LAYERS = ("Linear", "Conv", "LazyLinear", "LazyConv", "Bilinear")  # kinds of module, by how they begin
ALTERNATING = 8  # layers from which pairs of them show a trend
FEWEST = 4  # layers: fewer make no slope
DEEP = 5  # the same for activations, whose first and last layers have widths of their own
STEADY = 0.75  # of the layers go the same way: a geometric change does so at nearly every layer
JUMP = 0.5  # of the whole way: a layer that makes half of it is that layer's own matter, no slope


@dataclass(frozen=True, eq=False)
class Profile:
    """One figure a layer, in forward order: ln of the gradient's root mean square. NaN where it is 0 or not known.

    `part` is weight or bias. A bias gets the signal that arrives at its layer; a weight gets that times the layer's
    input, so a signal that shrinks both ways shows in the biases and leaves the weights level.
    """

    part: str
    tensors: tuple[Tensor, ...]
    values: Floats
    weights: tuple[Tensor, ...]  # of all affine layers, whichever part it is of


@dataclass(frozen=True)
class Slope:
    """Along the layers: `per_layer` the factor of a layer (median of all pairs, Theil & Sen), `total` the factor from
    one end to the other, `steady` the share of layers that go the same way, `jump` the largest share of the whole way
    (in logarithms) that one layer makes."""

    per_layer: float
    total: float
    steady: float
    jump: float

    @property
    def geometric(self) -> bool:
        """Made by all layers alike, not by one."""
        return self.steady >= STEADY and self.jump <= JUMP


def layers(trace: Trace, part: str) -> tuple[Tensor, ...]:
    """The trained weights or biases of affine layers in forward order; in the order of registration where that is not
    known for each. Layers that run several times in a forward pass are left out: theirs is a sum over depth."""
    repeated = {m.path for m in trace.modules if len(m.slots) > 1}
    found = [t for t in trace.trained if t.name.rpartition(".")[2] == part and t.module not in repeated]
    found = [t for t in found if t.kind.startswith(LAYERS) and (len(t.shape) > 1) == (part == "weight")]
    known = all(trace.depth(t) >= 0 for t in found)
    return tuple(sorted(found, key=trace.depth)) if known else tuple(found)


def profile(trace: Trace, part: str, updates: int | None = None) -> Profile | None:
    """Of the median update among the first `updates`; None with fewer than four layers whose gradient is known."""
    tensors = layers(trace, part)
    steps, norms = trace.matrix("grad/norm", tensors)
    norms = norms[: len(steps) if updates is None else updates]
    if len(tensors) < FEWEST or not len(norms):
        return None
    norms = np.where(np.isfinite(norms) & (norms > 0), norms, np.nan)
    seen = ~np.isnan(norms).all(axis=0)
    if seen.sum() < FEWEST:
        return None
    values = np.full(len(tensors), np.nan)
    values[seen] = np.log(np.nanmedian(norms[:, seen], axis=0))
    return Profile(part, tensors, values - 0.5 * np.log([t.size for t in tensors]), layers(trace, "weight"))


def slope(p: Profile) -> Slope:
    """From the output to the input."""
    return slope_along(p.values[::-1])


def slope_along(values: Floats) -> Slope:
    """Of logarithms in the order in which they stand, NaN left out. Two and more."""
    at = np.flatnonzero(~np.isnan(values))
    v = values[at]
    i, j = np.triu_indices(len(v), 1)
    per = float(np.median((v[j] - v[i]) / (at[j] - at[i])))
    steps = np.diff(v)
    ways = [steps, v[2:] - v[:-2]] if len(v) >= ALTERNATING else [steps]  # two by two: layers of blocks alternate
    way = float(v[-1] - v[0])
    with np.errstate(over="ignore"):
        return Slope(
            per_layer=float(np.exp(per)),
            total=float(np.exp(way)),
            steady=max(float(np.mean(np.sign(d) == np.sign(per))) for d in ways),
            jump=float(np.max(np.abs(steps)) / abs(way)) if way else np.inf,
        )


@dataclass(frozen=True, eq=False)
class Sizes:
    """ln of the std of what each affine layer puts out before the first update, in forward order."""

    modules: tuple[Module, ...]
    values: Floats

    @property
    def first(self) -> float:
        return float(np.exp(self.values[0]))

    @property
    def last(self) -> float:
        return float(np.exp(self.values[-1]))


def sizes(trace: Trace) -> Sizes | None:
    """None with fewer than `DEEP` layers. Those that put out a constant are left out (a branch that starts at zero),
    and those that run several times in a forward pass."""
    ran = [m for m in trace.modules if m.order is not None and len(m.slots) == 1 and m.kind.startswith(LAYERS)]
    known: list[tuple[Module, float]] = []
    for m in sorted(ran, key=lambda m: m.order or 0):
        std = trace.signal(f"activation/std[{m.slots[0]}]")
        if std is not None and std.steps[0] == 0 and 0 < std.first < np.inf:
            known.append((m, float(np.log(std.first))))
    if len(known) < DEEP:
        return None
    return Sizes(tuple(m for m, _ in known), np.array([v for _, v in known]))


def weight_norm(trace: Trace) -> float:
    """The norm of all that is trained, before update 0; 0.0 where none was seen."""
    firsts = [s.first for t in trace.trained if (s := trace.signal(f"weight/norm[{t.name}]")) is not None]
    return float(np.linalg.norm(np.array(firsts))) if firsts else 0.0


def sample_deep(
    biases: ArrayLike,
    loss: ArrayLike,
    kind: str = "ReLU",
    *,
    weights: float | None = None,
    more: Mapping[str, Any] | None = None,
) -> Run:
    """A made-up run of a deep network: the gradient's root mean square in each layer, from the first to the last."""
    sizes = np.asarray(biases, dtype=np.float64)
    widths = (16,) * (len(sizes) + 1)
    tensors, modules = sample_tensors(widths), sample_modules(widths, kind)
    signals = {}
    for t, size in zip(tensors, np.repeat(sizes, 2), strict=True):
        given = weights if weights is not None and t.name.endswith("weight") else size
        signals[f"grad/norm[{t.name}]"] = float(given * np.sqrt(t.size))
    return sample_run(loss=loss, tensors=tensors, modules=modules, signals=signals | dict(more or {}))


def sample_sizes(stds: Sequence[float], loss: ArrayLike) -> Run:
    """A made-up run of a deep network: the std of what each affine layer puts out before the first update."""
    widths = (16,) * (len(stds) + 1)
    modules = sample_modules(widths)
    affine = [m.path for m in modules if m.kind == "Linear"]
    signals = {f"activation/std[{path}]": std for path, std in zip(affine, stds, strict=True)}
    return sample_run(loss=loss, tensors=sample_tensors(widths), modules=modules, signals=signals)
