"""The form of a bundle's tape.json."""

from dataclasses import asdict
from typing import Annotated, Any, Literal

import msgspec

from whyloss.core.finding import Place
from whyloss.core.statistics import Statistics
from whyloss.tape.environment import Environment
from whyloss.tape.stored import Stored
from whyloss.tape.tape import Role

FORMAT = 1
TAPE, TENSORS = "tape.json", "tensors.safetensors"
Natural = Annotated[int, msgspec.Meta(ge=0)]
Number = float | Literal["nan", "inf", "-inf"]


class _Written(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class Figures(_Written, frozen=True, kw_only=True):
    low: Number
    high: Number
    mean: Number
    std: Number
    zeros: Number
    nonfinite: Natural
    distribution: bool = False
    integral: bool = False
    scales: tuple[Number, Number] | None = None


class WrittenValue(_Written, frozen=True, kw_only=True):
    shape: tuple[Natural, ...]
    dtype: str
    device: str = "cpu"
    requires_grad: bool = False
    statistics: Figures | None = None


class WrittenLeaf(_Written, frozen=True, kw_only=True):
    role: Role
    name: str = ""
    requires_grad: bool = False
    before: bool = False  # it had a gradient
    carried: bool = False


class WrittenOp(_Written, frozen=True, kw_only=True):
    name: str
    args: Any
    kwargs: Any
    out: Any = None
    grad: bool = True
    autocast: tuple[tuple[str, str], ...] = ()
    cache: bool = True
    scope: Natural = 0
    drawn: tuple[str, ...] = ()
    changed: tuple[Natural, ...] = ()
    module: str = ""
    place: Place = Place()
    inner: str = ""


class WrittenSetup(_Written, frozen=True, kw_only=True):
    kind: str
    groups: Any
    state: Any = None
    attributes: Any = None


class Contents(_Written, frozen=True, kw_only=True):
    """tape.json"""

    format: Literal[1]
    environment: Environment
    step: Natural
    trace: Natural
    training: bool
    modes: dict[str, bool]
    dtype: str
    tolerance: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    faithful: bool
    reason: str
    doubts: tuple[str, ...]
    redacted: bool
    leaves: dict[Natural, WrittenLeaf]
    values: dict[Natural, WrittenValue]
    ops: tuple[WrittenOp, ...]
    losses: tuple[Natural, ...]
    gradients: dict[Natural, Figures | None]  # None: none arrived
    setup: WrittenSetup | None
    tensors: dict[str, Stored]


def figures_of(statistics: Statistics) -> Figures:
    return Figures(**asdict(statistics))


def statistics_of(figures: Figures) -> Statistics:
    numbers = {name: float(getattr(figures, name)) for name in ("low", "high", "mean", "std", "zeros")}
    scales = None if figures.scales is None else (float(figures.scales[0]), float(figures.scales[1]))
    return Statistics(
        **numbers,
        nonfinite=figures.nonfinite,
        distribution=figures.distribution,
        integral=figures.integral,
        scales=scales,
    )
