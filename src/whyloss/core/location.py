"""Where a step first turned non-finite, as data that can be kept and shown without torch."""

from dataclasses import dataclass
from enum import StrEnum

from whyloss.core.finding import Place


class Phase(StrEnum):
    """What is the first to be non-finite."""

    LEAF = "leaf"  # a parameter, a buffer, an input or a target, before any call
    FORWARD = "forward"  # the result of a call on the way to the loss
    BACKWARD = "backward"  # the gradient of a call; the loss is finite
    UPDATE = "update"  # a parameter, which the update before left so
    OVERFLOW = "overflow"  # every gradient is finite, their norm is not
    MODEL_SIDE = "model-side"  # only this is known: the output of the model is already non-finite
    OBJECTIVE_SIDE = "objective-side"  # only this is known: that output is finite, the loss is not
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Of the finite elements; None where there are none. A Python number has the dtype "number" and no axes."""

    low: float | None
    high: float | None
    dtype: str
    shape: tuple[int, ...]
    nonfinite: int = 0  # elements

    def __str__(self) -> str:
        if self.low is None or self.high is None:
            return "a non-finite number" if self.dtype == "number" else "no finite element"
        return f"{self.low:.4g}" if self.low == self.high else f"[{self.low:.4g}, {self.high:.4g}]"


@dataclass(frozen=True, slots=True, kw_only=True)
class NonFinite:
    """The non-finite elements of one tensor. Rows lie along its first axis, columns along its last, of two or more."""

    nan: int
    positive: int  # +inf
    negative: int  # -inf
    elements: int  # of the tensor
    rows: tuple[int, ...] = ()  # the first few that hold one
    bad_rows: int = 0
    of_rows: int = 0
    columns: tuple[int, ...] = ()
    bad_columns: int = 0
    of_columns: int = 0

    @property
    def count(self) -> int:
        return self.nan + self.positive + self.negative

    def __str__(self) -> str:
        kinds = (("nan", self.nan), ("inf", self.positive), ("-inf", self.negative))
        names = " and ".join(name for name, number in kinds if number)
        if self.elements == 1:
            return names
        return f"{names} in {'all' if self.count == self.elements else self.count} of {self.elements} elements"


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLeaf:
    """A tensor that was non-finite before the step made any call."""

    role: str
    name: str  # "" where the program has no name for it
    values: NonFinite


@dataclass(frozen=True, slots=True, kw_only=True)
class Location:
    """The earliest call or leaf whose non-finite result reaches the bad loss or the bad gradients.

    In backward `op`, `module` and `place` are those of the forward call whose gradient it is, `aten` the autograd
    node. For an input or a target, `place` is that of its first use.
    """

    phase: Phase
    text: str  # one sentence
    op: str = ""  # torch.log
    aten: str = ""  # aten::log; backward: SqrtBackward0
    module: str = ""
    place: Place = Place()
    inner: str = ""  # file:line in the library that made the call
    leaf: BadLeaf | None = None
    inputs: tuple[Range, ...] = ()
    became: NonFinite | None = None
    deliberate: bool = False  # an infinity that the program put there itself reaches the loss
    gradients: tuple[str, ...] = ()  # parameters with a non-finite gradient; overflow: with the largest
    doubts: tuple[str, ...] = ()  # why this may not be what happened in the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Located:
    """The first update of an optimizer for which a loss or a gradient was non-finite, caught before it was made."""

    trace: int
    step: int
    location: Location
    bundle: str = ""  # the folder of the step's bundle, in the run's folder; "" where none could be written
