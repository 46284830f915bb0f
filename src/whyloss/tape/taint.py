"""Follows non-finite values from where they arise to what they reach, through forward and backward.

Every ATen call is seen. One that gives a non-finite result from finite inputs, or a NaN from an infinity, is an
Arisen; each non-finite storage knows those it comes from. An infinity that the program writes itself (a mask) is
deliberate: it answers for a bad loss only if nothing else does.
"""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from whyloss.core.location import NonFinite, Range
from whyloss.tape.nonfinite import followed, is_nonfinite, nonfinite, number, ranged, stored, values

_NO_SEQUENCE = 1 << 62  # AccumulateGrad and the like have a number above it
_OVERWRITES = frozenset({"copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_"})
_ELEMENTWISE = frozenset({"_to_copy", "copy_", "where", "masked_fill", "masked_fill_"})  # whether tagged or not
_WRITERS = frozenset({"full", "full_like", "new_full", "fill", "fill_", "scalar_tensor", "masked_fill", "masked_fill_"})
_SOFTMAX = frozenset({"_softmax", "_log_softmax", "_safe_softmax", "logsumexp"})
_CONSTANT = "lift_fresh"  # torch.tensor(…)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arisen:
    """Non-finite values that were not there before. `parents`: the infinities that a NaN was made of, less those of a
    mask; `of_infinities`: there were such."""

    order: int
    op: int | None  # number of the torch-level call; backward: the one whose gradient this is. None: not known
    aten: str = ""
    node: str = ""  # autograd node, in backward
    inputs: tuple[Range, ...] = ()
    became: NonFinite | None = None
    parents: frozenset[int] = frozenset()
    of_infinities: bool = False
    deliberate: bool = False
    leaf: int | None = None


@dataclass(frozen=True, slots=True)
class _Mark:
    """Of one storage: what its NaNs and its infinities come from. Its address is the key; while there is a weak
    reference to it, no other gets the same."""

    storage: StorageWeakRef
    nan: frozenset[int]
    infinite: frozenset[int]


@dataclass(slots=True)
class _Given:
    """A floating-point input as it was before the call. `active`: where its elements can reach the result."""

    value: torch.Tensor
    nan: frozenset[int]
    infinite: frozenset[int]
    active: torch.Tensor | None = None


class Taint(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is on, `begins` must be told of each torch-level call. Draws nothing and changes no result."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.arisen: list[Arisen] = []
        self._marks: dict[int, _Mark] = {}
        self._op: int | None = None
        self._starts: list[int] = []  # sequence number of autograd when each call began
        self._begun: list[int] = []

    def begins(self, op: int) -> None:
        """The torch-level call of that number runs next."""
        self._op = op
        self._starts.append(torch._C._autograd._get_sequence_nr())
        self._begun.append(op)

    def seed(self, tensor: torch.Tensor, leaf: int, *, deliberate: bool) -> None:
        """The tensor, a leaf, is non-finite before any call."""
        one = frozenset({self._add(op=None, leaf=leaf, became=nonfinite(tensor), deliberate=deliberate)})
        self._mark(tensor, one, one)

    def cause(self, tensors: Iterable[torch.Tensor]) -> Arisen | None:
        """The earliest that their non-finite values come from, a deliberate one only for want of others."""
        reached: set[int] = set()
        for tensor in tensors:
            if is_nonfinite(tensor):
                mark = self._marks.get(_address(tensor))
                nan = bool(values(tensor).isnan().any())
                reached |= (mark.nan if nan else mark.infinite) if mark is not None else frozenset()
        ancestors = [self.arisen[i] for i in sorted(self._ancestors(reached))]
        return next((a for a in ancestors if not a.deliberate), ancestors[0] if ancestors else None)

    def consequence(self, arisen: Arisen) -> Arisen | None:
        """The first NaN that was made of it."""
        return next((a for a in self.arisen if arisen.order in a.parents), None)

    def _ancestors(self, reached: set[int]) -> set[int]:
        found, left = set(reached), list(reached)
        while left:
            new = self.arisen[left.pop()].parents - found
            found |= new
            left += new
        return found

    # -- one ATen call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = _name(func)
        written = _written(func, args, kwargs)
        before = {id(t): t.clone() for t in written if _reads(name, t, kwargs) and followed(t)}
        out = func(*args, **kwargs)
        given = [] if name == _CONSTANT else _tensors((args, kwargs))
        made = _made(out, given, written)
        bad = []
        for tensor in made:
            if is_nonfinite(tensor):
                bad.append(tensor)
            elif _covers(tensor):
                self._marks.pop(_address(tensor), None)
        if bad:
            self._follow(func, (args, kwargs), self._givens(func, args, kwargs, given, written, before), bad)
        return out

    def _givens(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        tensors: list[torch.Tensor],
        written: list[torch.Tensor],
        before: Mapping[int, torch.Tensor],
    ) -> list[_Given]:
        unread = ({id(t) for t in written} - before.keys()) | _unread(func, args, kwargs)
        found = []
        for tensor in tensors:
            if id(tensor) in unread or not followed(tensor):
                continue
            value = values(before.get(id(tensor), tensor))
            mark = self._marks.get(_address(tensor))
            if mark is None and is_nonfinite(value):
                mark = self._unknown(tensor)
            sources = (mark.nan, mark.infinite) if mark is not None else (frozenset[int](), frozenset[int]())
            found.append(_Given(value, *sources, active=_active(_name(func), args, tensor)))
        return found

    def _unknown(self, tensor: torch.Tensor) -> _Mark:
        """A tensor that came in unseen. An infinity is taken for deliberate, a NaN is not."""
        deliberate = not bool(values(tensor).isnan().any())
        one = frozenset({self._add(op=self._op, became=nonfinite(tensor), deliberate=deliberate)})
        return self._mark(tensor, one, one)

    def _follow(self, func: Any, call: Any, given: list[_Given], bad: list[torch.Tensor]) -> None:
        name = _name(func)
        for tensor in bad:
            value = values(tensor)
            local = _elementwise(func, name, given, value)
            isnan, isinf = value.isnan(), value.isinf()
            nan, new_nan = _inherited(given, isnan, torch.isnan, "nan", local=local)
            infinite, new_infinite = _inherited(given, isinf, torch.isinf, "infinite", local=local)
            numbers = [x for x in tree_leaves(call) if isinstance(x, float)]
            if new_nan is not None:
                infinities, _ = parents, _ = _inherited(given, new_nan, torch.isinf, "infinite", local=local)
                if name in _SOFTMAX and not any(bool((g.value == torch.inf).any()) for g in given):
                    parents = frozenset(p for p in parents if self.arisen[p].leaf is None)  # a mask with other values
                wanted = name in _WRITERS and any(x != x for x in numbers)
                nan |= {self._arise(func, call, given, value, parents, bool(infinities), deliberate=wanted)}
            if new_infinite is not None:
                wanted = name == _CONSTANT or any(x in (torch.inf, -torch.inf) for x in numbers)
                infinite |= {self._arise(func, call, given, value, deliberate=wanted)}
            self._mark(tensor, nan, infinite)

    # -- what is known

    def _arise(
        self,
        func: Any,
        call: Any,
        given: list[_Given],
        value: torch.Tensor,
        parents: frozenset[int] = frozenset(),
        of_infinities: bool = False,
        *,
        deliberate: bool,
    ) -> int:
        op, node = self._running()
        inputs = [ranged(g.value) for g in given]
        if torch.Tag.pointwise in func.tags:
            inputs += [number(x) for x in call[0] if type(x) in (int, float)]
        return self._add(
            op=op,
            aten=func._schema.name,
            node=node,
            inputs=tuple(inputs),
            became=nonfinite(value),
            parents=parents,
            of_infinities=of_infinities,
            deliberate=deliberate,
        )

    def _running(self) -> tuple[int | None, str]:
        """The torch-level call, in backward the one that made the node that runs, and the node's name."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self._op, "" if torch._C._current_graph_task_id() == -1 else "backward"
        sequence = node._sequence_nr()
        place = bisect_right(self._starts, sequence) - 1
        known = 0 <= sequence < _NO_SEQUENCE and place >= 0 and self._begun[place] != self._op
        return self._begun[place] if known else None, node.name().rsplit("::", 1)[-1]

    def _add(self, *, op: int | None, **what: Any) -> int:
        self.arisen.append(Arisen(order=len(self.arisen), op=op, **what))
        return len(self.arisen) - 1

    def _mark(self, tensor: torch.Tensor, nan: frozenset[int], infinite: frozenset[int]) -> _Mark:
        address = _address(tensor)
        before = self._marks.get(address)
        if before is not None and not _covers(tensor):  # the rest of the storage keeps what it holds
            nan, infinite = nan | before.nan, infinite | before.infinite
        mark = self._marks[address] = _Mark(_reference(tensor), nan, infinite)
        return mark


# -- calls


def _name(func: Any) -> str:
    return str(func._schema.name).split("::")[-1]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, torch.Tensor)]


def _address(tensor: torch.Tensor) -> int:
    address: int = stored(tensor).untyped_storage()._cdata
    return address


def _reference(tensor: torch.Tensor) -> StorageWeakRef:
    return StorageWeakRef(stored(tensor).untyped_storage())  # type: ignore[no-untyped-call]


def _covers(tensor: torch.Tensor) -> bool:
    value = stored(tensor)
    return value.numel() * value.element_size() == value.untyped_storage().nbytes()


def _written(func: Any, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The inputs that the call changes in place."""
    if not func._schema.is_mutable:
        return []
    found: list[torch.Tensor] = []
    for i, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found += _tensors(args[i] if i < len(args) else kwargs.get(argument.name))
    return found


def _reads(name: str, tensor: torch.Tensor, kwargs: Mapping[str, Any]) -> bool:
    """Whether a tensor that the call writes is read too."""
    return name not in _OVERWRITES and not any(tensor is x for x in kwargs.values())


def _unread(func: Any, args: Any, kwargs: Any) -> set[int]:
    """The running statistics of a batch norm that trains: it is given them to update, no result is made of them."""
    named = dict(kwargs) | {a.name: value for a, value in zip(func._schema.arguments, args, strict=False)}
    trains = named.get("training", named.get("train", "update" in func._schema.name))
    return {id(named[n]) for n in ("running_mean", "running_var") if n in named} if trains else set()


def _made(out: Any, given: list[torch.Tensor], written: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    """What the call wrote: new tensors and those changed in place, no views."""
    seen = {id(t) for t in written}
    yield from filter(followed, written)
    there = {_address(t) for t in given if followed(t)}
    for tensor in filter(followed, _tensors(out)):
        if id(tensor) not in seen and _address(tensor) not in there:
            yield tensor


def _active(name: str, args: Any, tensor: torch.Tensor) -> torch.Tensor | None:
    """Where the call lets elements of the tensor through, if it chooses between elements."""
    if name == "where" and len(args) == 3:
        condition: torch.Tensor = args[0]
        if args[1] is args[2] or tensor is condition:
            return None
        return condition if tensor is args[1] else ~condition
    if name in ("masked_fill", "masked_fill_") and tensor is args[0]:
        filled: torch.Tensor = args[1]
        return ~filled
    return None


def _elementwise(func: Any, name: str, given: list[_Given], out: torch.Tensor) -> bool:
    """Whether each element of the result depends on one element of each input only."""
    if torch.Tag.pointwise not in func.tags and name not in _ELEMENTWISE:
        return False
    return all(_spreads(g.value.shape, out.shape) for g in given)


def _spreads(shape: torch.Size, over: torch.Size) -> bool:
    return len(shape) <= len(over) and all(a in (1, b) for a, b in zip(shape[::-1], over[::-1], strict=False))


def _inherited(
    given: list[_Given], bad: torch.Tensor, kind: Any, sources: str, *, local: bool
) -> tuple[frozenset[int], torch.Tensor | None]:
    """The sources of the inputs of this kind (isnan, isinf) that are behind bad elements of the result, and the bad
    elements that no such input stands behind; None where there are none."""
    found: frozenset[int] = frozenset()
    left = bad
    for one in given:
        held = kind(one.value)
        if local:
            held = held if one.active is None else held & one.active
            behind = bool((held & bad).any())
            left = left & ~held
        else:
            behind = bool(held.any()) and bool(bad.any())
            left = torch.zeros_like(left) if behind else left
        if behind:
            found |= getattr(one, sources)
    return found, left if bool(left.any()) else None
