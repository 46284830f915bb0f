"""Numbers for the tensors of a step, and what is kept of each: a copy of what the step started from, figures of all."""

import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from whyloss.tape.snapshot import same_bits, snapshot, storage_of, version_of
from whyloss.tape.statistics import Pending, look
from whyloss.tape.tape import Leaf, Role, Value
from whyloss.tape.where import inputs_of, running_root

Named = Mapping[int, tuple[torch.Tensor, Role, str]]


class Unrecordable(Exception):
    """Something that a tape can't hold; the text says what, as the user is told."""


@dataclass(slots=True)
class _Known:
    """A tensor that has a number. The tensor itself is not kept."""

    reference: "weakref.ref[torch.Tensor]"
    number: int
    version: int
    dirty: int  # recorded changes of its memory that it has seen
    written: int  # and others
    leaf: int | None  # its number as a leaf, which recorded changes in place leave it
    trained: bool  # requires_grad, of a leaf


class Numbers:
    """Gives numbers. A tensor that something unrecorded has changed is a leaf anew, under another number."""

    def __init__(self, named: Named, paths: Mapping[int, str], copy: bool, most_bytes: float) -> None:
        self.named, self.paths, self.copy, self.most_bytes = named, paths, copy, most_bytes
        self.leaves: dict[int, Leaf] = {}
        self.values: dict[int, Value] = {}
        self.family: dict[int, int] = {}  # number → the first tensor of which it is a view, or that it is changed from
        self.statistics: dict[int, Pending] = {}
        self.ran = False  # a module of the model
        self.scalar: tuple[int, torch.Tensor] | None = None  # the last result that may be a loss, and its value
        self._bytes = self._next = 0
        self._known: dict[int, _Known] = {}
        self._storage: dict[int, int] = {}
        self._checked: set[int] = set()  # leaves compared with the live tensor since the last update
        self._changed: set[int] = set()  # by recorded calls
        self._dirty: dict[int, int] = {}  # storage → how many recorded calls changed it
        self._written: dict[int, int] = {}  # storage → how often it was found changed by others
        self._exposed: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # storage → a view of it, a copy of that

    def given(self, t: torch.Tensor) -> int:
        """The number of a tensor that a call is given."""
        known = self._find(t)
        if known is not None and not self._changed_elsewhere(t, known):
            return known.number
        return self._enlist(t, leaf=True)

    def made(self, t: torch.Tensor, families: Mapping[int, int]) -> int:
        """A new number for a result; `families`: those of the tensors that the call was given."""
        before = self._find(t)
        number = self._enlist(t, leaf=False, families=families)
        if t.requires_grad and t.numel() == 1:
            self.scalar = number, t.detach()
        if before is not None and t.is_leaf:
            self._known[id(t)].leaf = before.leaf
        return number

    def known(self, t: torch.Tensor) -> int | None:
        found = self._find(t)
        return found.number if found is not None else None

    def is_leaf(self, t: torch.Tensor) -> bool:
        """Of the tape, whether or not recorded calls have changed it since."""
        found = self._find(t)
        return found is not None and found.leaf is not None

    def families(self, numbers: Iterator[int]) -> dict[int, int]:
        """Storage → the family that has it."""
        return {self._storage[n]: self.family[n] for n in numbers}

    def mark_changed(self, t: torch.Tensor) -> None:
        """A recorded call has changed it in place."""
        known = self._known[id(t)]
        storage = self._storage[known.number] = storage_of(t)
        self._changed.add(known.number)
        self._dirty[storage] = self._dirty.get(storage, 0) + 1
        known.version, known.dirty = version_of(t), self._dirty[storage]
        if storage in self._exposed:
            self.expose(self._exposed[storage][0])

    def expose(self, t: torch.Tensor) -> None:
        """From now on its memory may be written to past torch: through a NumPy array, say."""
        self._exposed[storage_of(t)] = (t.detach(), snapshot(t))

    def updated(self) -> None:
        """Parameters may have been changed: the next use compares them with their copies."""
        self._checked.clear()
        unsure = self._changed | {k.number for k in self._known.values() if k.leaf not in (None, k.number)}
        self._known = {i: k for i, k in self._known.items() if k.number not in unsure}

    def stand_for(self, t: torch.Tensor, other: torch.Tensor) -> None:
        """From now on `t` has the number of the other one, which is a result."""
        known = self._find(other)
        if known is None or t.requires_grad != other.requires_grad or t.shape != other.shape:
            raise Unrecordable("compiled code returns something else than the same code run uncompiled")
        number = known.number
        self._storage[number] = storage_of(t)
        self._known[id(t)] = _Known(weakref.ref(t), number, version_of(t), known.dirty, known.written, None, False)

    def keep(self, numbers: set[int]) -> None:
        """Forgets all other tensors."""
        for kept in (self.leaves, self.values, self.family, self.statistics, self._storage):
            for number in kept.keys() - numbers:
                del kept[number]
        self._known = {i: k for i, k in self._known.items() if k.number in numbers}

    def alive(self) -> dict[int, torch.Tensor]:
        """Number → the tensor that has it, where there still is one."""
        found = {known.number: known.reference() for known in list(self._known.values())}
        return {number: t for number, t in found.items() if t is not None}

    def live(self) -> Iterator[tuple[int, torch.Tensor]]:
        """Number and tensor of the leaves that want a gradient and are alive, as last numbered."""
        for known in list(self._known.values()):
            tensor = known.reference()
            if known.leaf is not None and known.trained and tensor is not None and tensor.is_leaf:
                yield known.leaf, tensor

    def _find(self, t: torch.Tensor) -> _Known | None:
        known = self._known.get(id(t))
        return known if known is not None and known.reference() is t else None

    def _changed_elsewhere(self, t: torch.Tensor, known: _Known) -> bool:
        """Whether something that was not recorded changed the tensor since it got its number."""
        if known.leaf is not None and known.trained != t.requires_grad and t.is_leaf:
            return True
        storage, version = self._storage[known.number], version_of(t)
        if self._exposed and self._times_written(storage) != known.written:
            return True
        if version != known.version:
            dirty = self._dirty.get(storage, 0)
            explained = dirty != known.dirty
            known.version, known.dirty = version, dirty
            if not explained:
                return True
        if known.leaf == known.number and known.number not in self._checked:
            self._checked.add(known.number)
            same = not self.copy or known.number in self._changed or same_bits(self.leaves[known.number].value, t)
            return not same
        return False

    def _times_written(self, storage: int) -> int:
        if storage in self._exposed:
            view, copy = self._exposed[storage]
            if not same_bits(copy, view):
                self._exposed[storage] = (view, snapshot(view))
                self._written[storage] = self._written.get(storage, 0) + 1
        return self._written.get(storage, 0)

    def _enlist(self, t: torch.Tensor, *, leaf: bool, families: Mapping[int, int] | None = None) -> int:
        number, storage = self._next, storage_of(t)
        self._next += 1
        self.values[number] = Value(shape=tuple(t.shape), dtype=t.dtype, device=t.device, requires_grad=t.requires_grad)
        self._storage[number] = storage
        self.family[number] = families.get(storage, number) if families else number
        dirty, written = self._dirty.get(storage, 0), self._written.get(storage, 0)
        own = number if leaf else None
        self._known[id(t)] = _Known(weakref.ref(t), number, version_of(t), dirty, written, own, t.requires_grad)
        if leaf:
            self.leaves[number] = self._leaf(number, t)
            self._checked.add(number)
        if self.copy:
            self.statistics[number] = look(t.detach(), columns=leaf)
        return number

    def _leaf(self, number: int, t: torch.Tensor) -> Leaf:
        role, name = self._role(t) if self.copy else self._owned(t) or (Role.CONSTANT, "")
        carried = t.requires_grad and not t.is_leaf
        kept = self._copy(t) if self.copy else t.new_empty(0) if carried else t.detach()
        return Leaf(
            index=number,
            role=role,
            name=name,
            value=kept,
            requires_grad=t.requires_grad,
            carried=carried,
        )

    def _copy(self, t: torch.Tensor) -> torch.Tensor:
        value = snapshot(t)
        self._bytes += value.numel() * value.element_size()
        if self._bytes > self.most_bytes:
            raise Unrecordable(f"its copies of parameters and data need more than {self.most_bytes / 2**20:.0f} MiB")
        return value

    def _owned(self, t: torch.Tensor) -> tuple[Role, str] | None:
        owned = self.named.get(id(t))
        return (owned[1], owned[2]) if owned is not None and owned[0] is t else None

    def _role(self, t: torch.Tensor) -> tuple[Role, str]:
        owned = self._owned(t)
        if owned is not None:
            return owned
        root = running_root(self.paths)
        self.ran = self.ran or root is not None
        for name, given in inputs_of(root) if root is not None else ():
            if given is t:
                return Role.INPUT, name
        if isinstance(t, nn.Parameter):
            return Role.PARAMETER, ""
        outside = self.ran and root is None and t.ndim > 0
        return (Role.TARGET if outside else Role.CONSTANT), ""


def tensors(tree: Any) -> Iterator[torch.Tensor]:
    """All tensors in nested tuples, lists, mappings and dataclasses."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for item in tree.values():
            yield from tensors(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from tensors(item)
    elif hasattr(tree, "__dataclass_fields__") and not isinstance(tree, type):
        yield from tensors(vars(tree))
