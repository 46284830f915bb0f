"""Do weights still look as an initialiser made them? From mean, std and largest value alone, before the first update.

A uniform initialiser has a hard bound that n draws come within bound·10/n of, and never pass: trained weights pass it.
A normal one has a std known to 0.7/√n and a largest of n draws known to a few percent: trained weights have other
figures or heavier tails. What is constant (norm layers, zeros), a vector, or too small says nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from whyloss.core.run import Tensor, Trace
from whyloss.core.step_graph import WEIGHT_SECOND, StepGraph

FEWEST = 32  # values below which the figures of a weight say nothing
ERRORS = 3.0  # standard errors that std and mean may be off: 1 fresh weight in 200 is missed
RARE = 1e-4  # probability below which the largest of n uniform draws is not believed
TAIL = 0.01  # the same for normal draws, at either side: trained weights differ from them by their tails
CUSTOMARY = 1000  # values from which a guess among the customary initialisers is safe
CUT = 0.8796  # std of a standard normal cut off at ±2
GATES = {"LSTM": 4, "LSTMCell": 4, "GRU": 3, "GRUCell": 3, "RNN": 1, "RNNCell": 1}
GAINS = (1.0, math.sqrt(2.0), 5 / 3)  # linear, ReLU, tanh
FIXED = (1.0, 0.5, 0.3, 0.2, 0.1, 0.05, 0.02, 0.01, 0.001)  # standard deviations that people and libraries write down


def gates(tensor: Tensor) -> int:
    """How many rows of a weight one unit has: several in a recurrent layer."""
    return GATES.get(tensor.kind, 1)


def looks_untrained(tensor: Tensor) -> bool | None:
    """True where the values are those of a fresh initialisation, PyTorch's own or a customary one; None: can't tell."""
    default = looks_default(tensor)
    if default is not False:
        return default
    if not any(_drawn(tensor, std) for std in _customary(tensor)):
        return False
    return True if tensor.size >= CUSTOMARY else None


def looks_default(tensor: Tensor) -> bool | None:
    """The same for what PyTorch itself gives a module of this kind: nobody has chosen these values."""
    if not _judgeable(tensor):
        return None
    if tensor.kind in ("Embedding", "EmbeddingBag"):
        return _normal(tensor, 1.0)
    return any(_uniform(tensor, bound) for bound in _default_bounds(tensor))


def untrained(tensors: Iterable[Tensor], *, share: float = 0.8) -> bool | None:
    """Whether a group as a whole looks fresh: at least `share` of the values that can be judged; None: none can be."""
    judged = [(t.size, verdict) for t in tensors if (verdict := looks_untrained(t)) is not None]
    total = sum(size for size, _ in judged)
    return sum(size for size, fresh in judged if fresh) >= share * total if total else None


def looks_loaded(tensors: Iterable[Tensor]) -> bool:
    """Whether a group looks trained as a whole, or has a normalisation whose factors are not all the same."""
    group = tuple(tensors)
    return untrained(group) is False or any("Norm" in t.kind and len(t.shape) == 1 and t.std for t in group)


def _judgeable(t: Tensor) -> bool:
    figures = (t.std, t.mean, t.largest)
    if any(f is None or not math.isfinite(f) for f in figures) or "Norm" in t.kind:
        return False
    return len(t.shape) > 1 and t.size >= FEWEST and (t.std or 0.0) > 0.0


def _default_bounds(t: Tensor) -> list[float]:
    fan_in = max(t.fan_in, 1)
    if t.kind in GATES:
        return [math.sqrt(GATES[t.kind] / t.shape[0])]
    if t.kind == "Bilinear":
        return [1 / math.sqrt(t.shape[1])]
    return [
        1 / math.sqrt(fan_in),
        math.sqrt(6 / (fan_in + _fan_out(t))),
    ]  # Linear and convolutions; attention, Transformer


def _customary(t: Tensor) -> list[float]:
    """Standard deviations: Kaiming and Xavier by fan-in, fan-out and both, orthogonal, and fixed ones."""
    if t.kind.startswith("Embedding"):
        return [1 / math.sqrt(max(t.fan_in, 1)), *FIXED]
    fans = (t.fan_in, _fan_out(t), (t.fan_in + _fan_out(t)) / 2, max(t.shape[0], t.fan_in))
    return [*(gain / math.sqrt(max(fan, 1)) for fan in fans for gain in GAINS), *FIXED]


def _drawn(t: Tensor, std: float) -> bool:
    return _normal(t, std) or _uniform(t, math.sqrt(3) * std) or _truncated(t, std) or _orthogonal(t, std)


def _fan_out(t: Tensor) -> int:
    return t.shape[0] * math.prod(t.shape[2:])


def _uniform(t: Tensor, bound: float) -> bool:
    """Drawn from U(−bound, bound): the largest is just below the bound, mean and std are right."""
    assert t.largest is not None
    rounding = 1 + (2**-8 if t.dtype in ("bfloat16", "float16") else 1e-6)
    nearest = bound * (1 - min(-math.log(RARE) / t.size, 1.0))  # P(largest < bound·(1 − k/n)) = e^−k
    return nearest <= t.largest <= bound * rounding and _moments(t, bound / math.sqrt(3), 0.447)


def _normal(t: Tensor, std: float) -> bool:
    """Drawn from N(0, std²): mean, std and the largest of n draws are right."""
    assert t.largest is not None
    below = math.erf(t.largest / std / math.sqrt(2)) ** t.size  # P(largest of n draws is smaller)
    return TAIL < below < 1 - TAIL and _moments(t, std, 0.707)


def _truncated(t: Tensor, std: float) -> bool:
    """Drawn from a normal cut off at twice its own std, which is `std` before or after the cut."""
    assert t.largest is not None
    return any(_moments(t, CUT * s, 0.6) and 1.9 * s <= t.largest <= 2 * s * (1 + 1e-6) for s in (std, std / CUT))


def _orthogonal(t: Tensor, std: float) -> bool:
    """Orthonormal rows or columns: their norm is exact, so the std is right far within a sampling error."""
    assert t.std is not None
    exact = [gain / math.sqrt(max(t.shape[0], t.fan_in)) for gain in GAINS]
    return std in exact and abs(t.std - std) <= 1e-3 * std


def _moments(t: Tensor, std: float, error: float) -> bool:
    """std and mean within their sampling errors; an embedding may have a padding row of zeros."""
    assert t.std is not None
    assert t.mean is not None
    root = math.sqrt(t.size)
    padding = 0.5 / t.shape[0] if t.kind.startswith("Embedding") else 0.0
    return abs(t.std / std - 1) <= ERRORS * error / root + padding and abs(t.mean) <= ERRORS * std / root


@dataclass(frozen=True)
class Scaled:
    """A weight that multiplies what goes through the network. `ratio`: its std at the start times √fan_in, which keeps
    the size of a signal at 1; Kaiming's is √2, PyTorch's default 0.58."""

    tensor: Tensor
    fan_in: int
    ratio: float


def scales(trace: Trace) -> tuple[Scaled, ...]:
    """Of the trained weights in the order of their use, or of registration where no step was recorded. Constant ones
    are left out: zeros are a matter of their own."""
    used = _fans(trace.graphs[0]) if trace.graphs else {}
    found = {t.name: t for t in trace.trained if t.std is not None and math.isfinite(t.std) and t.std > 0}
    names = {name: t for t in found.values() for name in (t.name, *t.aliases)}
    fans = used or {
        t.name: t.fan_in for t in found.values() if t.kind.startswith(("Linear", "Conv")) and len(t.shape) > 1
    }
    return tuple(
        Scaled(names[n], fan, (names[n].std or 0.0) * math.sqrt(fan))
        for n, fan in fans.items()
        if n in names and fan >= 1 and names[n].size >= FEWEST
    )


def _fans(graph: StepGraph) -> dict[str, int]:
    """Name of a parameter that an affine call multiplies with → how many numbers each of its results is a sum of."""
    parameters = {leaf.value: leaf.name for leaf in graph.leaves if leaf.role == "parameter" and leaf.name}
    fans: dict[str, int] = {}
    for op in graph.affine:
        for n in op.inputs:
            shape = graph.values[n].shape
            if n not in parameters or len(shape) < 2 or n == op.tensors.get("bias"):
                continue
            rows_first = op.kind in WEIGHT_SECOND  # [outputs, inputs, …]; a factor of a product is [inputs, outputs]
            fans.setdefault(parameters[n], math.prod(shape[1:]) if rows_first else shape[-2])
    return fans
