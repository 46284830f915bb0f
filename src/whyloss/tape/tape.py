"""One recorded training step: torch-level calls in order, and the leaf tensors that they started from.

The calls stand above autograd, so running them again with other leaves builds the same graph over those.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import torch

from whyloss.core.finding import Place
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import BACKWARD as BACKWARD

READS = frozenset(
    f"torch.Tensor.{name}"
    for name in ("item", "tolist", "numpy", "__array__", "__bool__", "__float__", "__int__", "__index__", "__complex__")
)


class Role(StrEnum):
    """What a leaf is to the step."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    INPUT = "input"
    TARGET = "target"
    CONSTANT = "constant"


@dataclass(frozen=True, slots=True)
class Ref:
    """A tensor of the tape, by its number."""

    index: int


@dataclass(frozen=True, slots=True)
class Context:
    """The state of torch in which a call is made. `autocast` names the devices where it is on, and its dtype there."""

    grad: bool = True
    autocast: tuple[tuple[str, torch.dtype], ...] = ()
    cache: bool = True  # autocast keeps its casts of weights
    scope: int = 0  # how often that cache was emptied before


@dataclass(frozen=True, slots=True)
class Drawn:
    """The state of one generator before a call that draws from it. `device` names a default one; "" is one given."""

    device: str
    state: torch.Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """One call. `args`, `kwargs` and `out` hold Refs in place of tensors; `out` is None where no tensor came back."""

    name: str  # torch.softmax, torch.Tensor.detach; user.module.MyFunction for a custom autograd.Function
    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    out: Any = None
    context: Context = Context()
    drawn: tuple[Drawn, ...] = ()
    changed: tuple[int, ...] = ()  # tensors that the call changes in place
    module: str = ""  # path of the innermost module that was running; "" outside any, or in the root itself
    place: Place = Place()  # the user's own line
    inner: str = ""  # file:line in the library that made the call, where that is not the user's

    @property
    def inputs(self) -> tuple[int, ...]:
        """Numbers of the tensors it is given, in order."""
        return tuple(r.index for r in refs((self.args, dict(self.kwargs))))

    @property
    def outputs(self) -> tuple[int, ...]:
        return tuple(r.index for r in refs(self.out))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A tensor that no call of the tape made. `value` is a copy, as it was when the step first used it."""

    index: int
    role: Role
    name: str  # parameters and buffers: as the model names them; inputs: the argument's name; else ""
    value: torch.Tensor
    requires_grad: bool = False
    before: torch.Tensor | None = None  # the gradient that it had before the first backward
    carried: bool = False  # it already had a graph, which this tape does not hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What is known of a tensor of the tape without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    statistics: Statistics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The optimizer of the step: class, settings of its groups with the numbers of their parameters, and its state.

    `state`: number of a parameter → what the optimizer keeps for it; None where it was not copied. `attributes`: what
    else it holds that is plain data, its defaults among it, with Refs for parameters.
    """

    kind: type
    groups: tuple[Mapping[str, Any], ...]  # as in param_groups, "params" being numbers
    state: Mapping[int, Mapping[str, Any]] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Tape:
    """One training step of one optimizer. `faithful`: replayed unchanged it gave loss and gradients bit for bit.

    `ops` are those from which the losses are made, backward calls included; `aside` are the calls whose results left
    torch (`.item()`, `.numpy()`) and what only they need.
    """

    ops: tuple[Op, ...]
    leaves: Mapping[int, Leaf]
    values: Mapping[int, Value]
    losses: tuple[int, ...]  # what the backward calls start from
    aside: tuple[Op, ...] = ()
    step: int = 0  # of its optimizer
    trace: int = 0  # the optimizer's number in the run
    setup: Setup | None = None
    modes: Mapping[str, bool] = field(default_factory=dict)  # path → module.training, where it differs from the root's
    training: bool = True  # of the root module
    dtype: torch.dtype = torch.float32  # torch's default while it was recorded
    tolerance: float = 0.0  # relative; above 0 where compiled code ran: only so near can a replay come
    faithful: bool = False
    reason: str = "not replayed yet"  # why it is not faithful
    doubts: tuple[str, ...] = ()  # what was seen while recording that a replay may not reproduce

    def named(self, name: str) -> Leaf:
        """The leaf of that name. KeyError where there is none."""
        for leaf in self.leaves.values():
            if leaf.name == name:
                return leaf
        raise KeyError(name)

    def of(self, *roles: Role) -> tuple[Leaf, ...]:
        """The leaves with one of these roles, in the order of their first use."""
        return tuple(leaf for leaf in self.leaves.values() if leaf.role in roles)

    @property
    def bytes(self) -> int:
        """What the tape keeps in memory."""
        kept = [leaf.value for leaf in self.leaves.values()]
        kept += [leaf.before for leaf in self.leaves.values() if leaf.before is not None]
        kept += [drawn.state for op in self.ops for drawn in op.drawn]
        for state in (self.setup.state or {}).values() if self.setup else ():
            kept += [v for v in state.values() if isinstance(v, torch.Tensor)]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept if _stored(t)}
        return sum(storages.values())


def _stored(t: torch.Tensor) -> bool:
    return t.layout == torch.strided


def refs(tree: Any) -> Iterator[Ref]:
    """All Refs in nested tuples, lists, dicts and slices."""
    if type(tree) is Ref:
        yield tree
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from refs(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from refs(item)
    elif type(tree) is slice:
        yield from refs((tree.start, tree.stop, tree.step))


def mapped(tree: Any, change: Callable[[Any], Any], kind: type | tuple[type, ...]) -> Any:
    """The tree with every leaf of `kind` replaced. Tuples stay tuples (named ones become plain), dicts become dict."""
    if isinstance(tree, kind):
        return change(tree)
    if isinstance(tree, dict):
        return {key: mapped(item, change, kind) for key, item in tree.items()}
    if isinstance(tree, tuple):
        return tuple(mapped(item, change, kind) for item in tree)
    if isinstance(tree, list):
        return [mapped(item, change, kind) for item in tree]
    if type(tree) is slice:
        return slice(*(mapped(part, change, kind) for part in (tree.start, tree.stop, tree.step)))
    return tree
