"""A sketch of every leaf module's output at an observed step: 32 rows each, copied into one buffer, reduced in batch.

Hooks are on the modules only while a step is observed. They copy and compare on the device, read nothing back, draw
no random number, and do nothing inside a compiled region.
"""

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from whyloss.core.lines import user_place
from whyloss.core.run import Module
from whyloss.core.series import Floats
from whyloss.observe.models import Root, siblings
from whyloss.observe.rows import Row

SMOOTH = ("ELU", "SiLU", "Sigmoid", "Tanh", "Softmax", "Softplus", "Mish", "Embedding", "Attention")
ROWS = 32
MOST_CALLS = 4  # slots of a module that runs several times in one forward pass
MOST_CHANNELS = 4096  # of one slot; wider outputs are sketched in their first channels
WINDOW = 20  # observed steps after which a window of dead units is full
SUSPECT = 0.1  # share of units without output in the sketch from which on all examples are looked at
CLEAR = 0.5  # the share from which on three steps are enough to suspect, and an acquittal does not count
CHANNELS_FIRST = (
    "Conv",
    "BatchNorm",
    "InstanceNorm",
    "GroupNorm",
    "MaxPool",
    "AvgPool",
    "AdaptiveAvgPool",
    "Dropout2d",
)
PARTS = ("mean", "std", "low", "high", "zeros", "dead", "window", "exact")


class Guard(Protocol):
    """Calls a function so that nothing it raises reaches the training."""

    def __call__(self, what: Callable[..., None], *args: Any) -> None: ...


class Hook:
    """Picklable and copyable: a model saved or copied while it is observed carries a hook that does nothing."""

    def __init__(self, guard: Guard, call: Callable[..., None]) -> None:
        self.guard, self.call = guard, call

    def __call__(self, *args: Any) -> None:
        if not torch.compiler.is_compiling():
            self.guard(self.call, *args)

    def __reduce__(self) -> Any:
        return getattr, (nullcontext(), "__exit__")


@dataclass
class _Slot:
    """The output of one call of a module: its columns in the buffer, and the largest value each unit has had."""

    name: str
    path: str
    channels_first: bool
    start: int
    width: int
    device: torch.device
    rows: int = 0  # of the buffer that hold examples; the rest repeats the first
    filled: bool = False  # in this step
    suspected: bool = False
    exact_since: int | None = None  # observed step from whose end on every example is looked at

    acquitted: bool = False  # a whole window of all examples showed its units alive

    def judge(self, dead: float, seen: int, exact: bool, observed: int) -> None:
        """Whether to look at all examples from now on. A few rows of a few steps make many units look dead."""
        if exact and seen >= WINDOW and dead < SUSPECT:
            self.suspected, self.acquitted = False, True
        elif not exact:
            weak = dead >= SUSPECT and observed >= 10 and not self.acquitted
            self.suspected = weak or (dead >= CLEAR and observed >= 3)

    @property
    def columns(self) -> slice:
        return slice(self.start, self.start + self.width)


class _Buffers:
    """Of one device: 32 rows of every slot side by side, and what the dead units are judged by."""

    def __init__(self, device: torch.device) -> None:
        self.rows = torch.zeros(ROWS, 0, device=device, dtype=torch.float32)
        self.weights = torch.zeros(ROWS, 0, device=device, dtype=torch.float32)  # 1 for an example, 0 for a repetition
        self.high = [torch.zeros(0, device=device, dtype=torch.float32) for _ in range(3)]  # step, window, one before
        self._views: dict[int, torch.Tensor] = {}  # of the rows, by where a slot begins

    def grow(self, width: int) -> int:
        """Room for one more slot; where it begins."""
        start = self.rows.shape[1]
        self.rows, self._views = torch.cat([self.rows, self.rows.new_zeros(ROWS, width)], dim=1), {}
        self.weights = torch.cat([self.weights, self.weights.new_zeros(ROWS, width)], dim=1)
        self.high = [torch.cat([h, h.new_full((width,), -torch.inf)]) for h in self.high]
        return start

    def statistics(self, full: bool) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Mean, variance, lowest, highest and share of zeros of each unit. `full`: every row holds an example.

        amin and amax, not aminmax, and no var_mean: along a dim these are ten times slower on CPU.
        """
        low, high = self.rows.amin(0), self.rows.amax(0)
        if full:
            mean = self.rows.mean(0)
            scratch = self.rows - mean
            variance = scratch.square_().mean(0)  # two passes: no cancellation
            return mean, variance, low, high, torch.eq(self.rows, 0, out=scratch).mean(0)
        count = self.weights.sum(0)
        mean = (self.rows * self.weights).sum(0) / count
        scratch = self.rows - mean
        variance = scratch.square_().mul_(self.weights).sum(0) / count
        zeros = torch.eq(self.rows, 0, out=scratch).mul_(self.weights).sum(0) / count
        return mean, variance, low, high, zeros

    def turn(self) -> None:
        self.high = [self.high[0], torch.full_like(self.high[1], -torch.inf), self.high[1]]

    def put(self, slot: _Slot, picked: torch.Tensor) -> None:
        """At most ROWS examples; the first fills what is left, with no weight: it changes no mean and no extreme."""
        n, into = len(picked), self._views.get(slot.start)
        if into is None:
            into = self._views[slot.start] = self.rows[:, slot.columns]
        if n == ROWS:
            into.copy_(picked)
        else:
            into[:n].copy_(picked)
            into[n:].copy_(picked[:1].expand(ROWS - n, -1))
        if n != slot.rows:
            slot.rows = n
            self.weights[:, slot.columns] = 0.0
            self.weights[:n, slot.columns] = 1.0


class _Part:
    """A root and the modules below it. Hooks are on those only while the root runs forward with gradients; where the
    root is never called itself, all the time that a step is observed."""

    def __init__(self, root: nn.Module, watched: dict[str, nn.Module]) -> None:
        self.root, self.watched = root, watched
        self.called = False
        self.grad = True  # gradients were on when the root began its forward pass
        self.trains = False  # the last backward pass found it in train mode
        self.calls: dict[str, int] = {}
        self._around: list[Any] = []
        self._inside: list[Any] = []

    @property
    def evaluating(self) -> bool:
        """A forward pass in eval mode that no backward pass will follow: without gradients, or amid training.

        In train mode a pass without gradients may be an encoder's whose output is meant to be trained on.
        """
        return not self.root.training and (self.trains or not torch.is_grad_enabled())

    def arm(self, before: Hook, after: Hook, output: Hook) -> None:
        if self._around or not self.watched:
            return
        self._around = [self.root.register_forward_pre_hook(before), self.root.register_forward_hook(after)]
        if not self.called:
            self.inside(output)

    def inside(self, output: Hook) -> None:
        if not self._inside:
            self._inside = [m.register_forward_hook(output) for m in self.watched.values()]

    def outside(self) -> None:
        while self._inside:
            self._inside.pop().remove()

    def disarm(self) -> None:
        self.outside()
        while self._around:
            self._around.pop().remove()


class Sketch:
    """Watches the modules below some roots."""

    def __init__(self, roots: Iterable[Root], guard: Guard, compiled: Callable[[nn.Module], bool]) -> None:
        self.modules: dict[str, Module] = {}
        self.blind = False  # to what is compiled: hooks there would be compiled, too, and compiled anew when they go
        self._compiled = compiled
        self._paths: dict[int, tuple[str, _Part]] = {}
        self._parts: dict[int, _Part] = {}
        for root in roots:
            self._add(root)
        hooks = self._before_root, self._after_root, self._after_forward
        self._hooks = [Hook(guard, call) for call in hooks]
        self._slots: dict[str, _Slot] = {}
        self._buffers: dict[torch.device, _Buffers] = {}
        self._observed = 0  # observed steps so far; also turns the choice of rows
        self._window = [0, 0]  # observed steps in this window and the one before
        self._order = 0
        self.changed = True  # modules or slots were added since the caller last looked

    def _add(self, root: Root) -> None:
        part = self._parts[id(root.module)] = _Part(root.module, {})
        closed: tuple[str, ...] = ()
        for path, module in root.module.named_modules():
            if self._compiled(module):
                self.blind, closed = True, (*closed, path)
            if any(path == c or path.startswith(f"{c}." if c else "") for c in closed):
                continue
            if id(module) in self._paths or (any(module.children()) and not module._parameters):
                continue
            full = root.path(path)
            part.watched[full] = module
            self._paths[id(module)] = full, part
            around = tuple(root.path(p) for p in siblings(path, root.module))
            self.modules[full] = Module(path=full, kind=type(module).__name__, siblings=around)

    def of(self, modules: list[nn.Module]) -> bool:
        """Whether these are its roots."""
        return [id(m) for m in modules] == list(self._parts)

    # -- hooks

    def arm(self) -> None:
        """Before an observed step."""
        for part in self._parts.values():
            part.arm(*self._hooks)

    def disarm(self) -> None:
        for part in self._parts.values():
            part.disarm()

    def pass_ends(self) -> None:
        """A backward pass was made: what ran twice so far is not what will run twice in the next one."""
        for part in self._parts.values():
            part.calls, part.trains = {}, part.root.training

    def _before_root(self, module: nn.Module, args: Any) -> None:
        part = self._parts.get(id(module))
        if part is None or _recomputing():
            return
        part.called, part.calls, part.grad = True, {}, torch.is_grad_enabled()
        if part.evaluating:
            part.outside()
        else:
            part.inside(self._hooks[2])

    def _after_root(self, module: nn.Module, args: Any, output: Any) -> None:
        part = self._parts.get(id(module))
        if part is not None and not _recomputing():
            part.outside()

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        path, part = self._paths.get(id(module), (None, None))
        if path is None or part is None or _recomputing() or torch.is_inference_mode_enabled():
            return
        if part.evaluating and not (part.called and module.training):
            return
        self._ran(path, module)
        if (part.called and part.grad) or torch.is_grad_enabled():
            self._sketch(path, part, module, _first_tensor(output))

    def _ran(self, path: str, module: nn.Module) -> None:
        known = self.modules[path]
        if known.order is None:
            kind = type(module).__name__  # a lazy module becomes another one when it first runs
            self.modules[path] = replace(known, kind=kind, order=self._order, place=user_place())
            self._order += 1
            self.changed = True

    @torch.no_grad()
    def _sketch(self, path: str, part: _Part, module: nn.Module, tensor: torch.Tensor | None) -> None:
        call = part.calls.get(path, 0)
        part.calls[path] = call + 1
        if call >= MOST_CALLS or tensor is None or tensor.ndim < 2 or not tensor.numel():
            return
        tensor = tensor.detach()
        name = path if call == 0 else f"{path}:{call}"
        slot = self._slots.get(name) or self._new_slot(name, path, module, tensor)
        rows = _rows(tensor, slot.channels_first, self._observed)
        if rows.shape[1] < slot.width or tensor.device != slot.device:
            return
        stride = max(1, len(rows) // ROWS)
        buffers = self._buffers[slot.device]
        begin = self._observed % stride
        picked = rows[begin : begin + stride * ROWS : stride]
        buffers.put(slot, picked if picked.shape[1] == slot.width else picked[:, : slot.width])
        if slot.exact_since is not None:
            _look_at_all(buffers.high[0][slot.columns], slot, tensor)
        slot.filled = True

    def _new_slot(self, name: str, path: str, module: nn.Module, tensor: torch.Tensor) -> _Slot:
        first = _channels_first(module, tensor, list(self._slots.values()))
        width = min(tensor.shape[1] if first else tensor.shape[-1], MOST_CHANNELS)
        buffers = self._buffers.setdefault(tensor.device, _Buffers(tensor.device))
        slot = self._slots[name] = _Slot(name, path, first, buffers.grow(width), width, tensor.device)
        known = self.modules[path]
        self.modules[path] = replace(known, slots=(*known.slots, name))
        self.changed = True
        return slot

    # -- results

    @property
    def slots(self) -> list[str]:
        return list(self._slots)

    @torch.no_grad()
    def reduce(self, row: Row, columns: dict[str, int]) -> None:
        """Puts the figures of this observed step into the row."""
        self._observed += 1
        for device, buffers in self._buffers.items():
            slots = [s for s in self._slots.values() if s.device == device]
            self._reduce_device(row, columns, buffers, slots)
        slots = list(self._slots.values())
        for slot, after in zip_longest(slots, slots[1:]):
            slot.filled = False
            slot.suspected = slot.suspected and self._may_gate(slot, after)
            if slot.suspected != (slot.exact_since is not None):
                self._look_anew(slot)
        self._turn_window()

    def _reduce_device(self, row: Row, columns: dict[str, int], buffers: _Buffers, slots: list[_Slot]) -> None:
        mean, variance, low, high, zeros = buffers.statistics(all(s.rows == ROWS for s in slots))
        buffers.high[0] = torch.maximum(buffers.high[0], high)
        _forget(buffers, [s for s in slots if not s.filled])
        buffers.high[1] = torch.maximum(buffers.high[1], buffers.high[0])
        buffers.high[0] = torch.full_like(buffers.high[0], -torch.inf)
        dead = (torch.maximum(buffers.high[1], buffers.high[2]) <= 0).float()
        columnwise = torch.stack([mean, variance, low, high, zeros, dead])
        made = [(s, self._seen(s), s.exact_since is not None) if s.filled else None for s in slots]
        starts, width = [s.start for s in slots], columnwise.shape[1]
        row.then(columnwise, lambda flat: self._put_all(row, columns, made, _figures(flat.reshape(-1, width), starts)))

    def _seen(self, slot: _Slot) -> int:
        """Observed steps that the slot's dead units were judged on, this one included."""
        seen = self._window[0] + 1 + self._window[1]
        return seen if slot.exact_since is None else min(seen, self._observed - slot.exact_since)

    def _put_all(
        self, row: Row, columns: dict[str, int], made: list[tuple[_Slot, int, bool] | None], figures: Floats
    ) -> None:
        for one, each in zip(made, figures.T, strict=True):
            if one is None:
                continue
            slot, seen, exact = one
            first = columns.get(f"activation/{PARTS[0]}[{slot.name}]")
            if first is not None:  # the parts of a slot are neighbours
                row.values[first : first + len(PARTS)] = (*each, seen, exact)
            slot.judge(float(each[5]), seen, exact, self._observed)

    def _may_gate(self, slot: _Slot, after: _Slot | None) -> bool:
        """A ReLU, or a layer that runs straight into another one: a functional ReLU may be between them."""
        kind = self.modules[slot.path].kind
        following = self.modules[after.path].kind if after is not None else ""
        return kind.startswith("ReLU") or (
            not kind.endswith(SMOOTH) and following.startswith(("Linear", "Conv", "ReLU"))
        )

    def _look_anew(self, slot: _Slot) -> None:
        """From the next observed step on, judge this slot on all examples, or no longer; what was seen is forgotten."""
        slot.exact_since = self._observed if slot.suspected else None
        for high in self._buffers[slot.device].high:
            high[slot.columns] = -torch.inf

    def suspects(self) -> set[str]:
        return {s.path for s in self._slots.values() if s.exact_since is not None}

    def _turn_window(self) -> None:
        self._window[0] += 1
        if self._window[0] >= WINDOW:
            self._window = [0, self._window[0]]
            for buffers in self._buffers.values():
                buffers.turn()


def _recomputing() -> bool:
    """Inside backward: checkpointing runs forward again there."""
    return bool(torch._C._current_graph_task_id() != -1)


def _look_at_all(high: torch.Tensor, slot: _Slot, tensor: torch.Tensor) -> None:
    """The largest output of each unit over all examples, instead of the sampled rows."""
    last = 1 if slot.channels_first else tensor.ndim - 1
    others = [d for d in range(tensor.ndim) if d != last]
    torch.maximum(high, tensor.amax(dim=others)[: slot.width].float(), out=high)


def _forget(buffers: _Buffers, slots: list[_Slot]) -> None:
    """Slots that did not run in this step: what stands in their rows is of an earlier one."""
    for slot in slots:
        buffers.high[0][slot.columns] = -torch.inf


def _first_tensor(output: Any) -> torch.Tensor | None:
    """A plain tensor of numbers; None for subclasses, nested, sparse and traced ones."""
    while isinstance(output, tuple | list) and output:
        output = output[0]
    if type(output) not in (torch.Tensor, nn.Parameter) or output.is_nested or output.layout != torch.strided:
        return None
    if torch._C._get_tracing_state() is not None or torch._C._functorch.peek_interpreter_stack() is not None:
        return None
    return output if output.is_floating_point() and output.device.type != "meta" else None


def _channels_first(module: nn.Module, tensor: torch.Tensor, before: list[_Slot]) -> bool:
    """Whether dim 1 holds the units: images and convolutions; an activation follows the slot before it."""
    if tensor.ndim >= 4 or type(module).__name__.startswith(CHANNELS_FIRST):
        return True
    return tensor.ndim == 3 and bool(before) and before[-1].channels_first and before[-1].width == tensor.shape[1]


def _rows(tensor: torch.Tensor, channels_first: bool, turn: int) -> torch.Tensor:
    """[examples or positions, units] as a view: images at one position a step, which moves with `turn`."""
    if channels_first and tensor.ndim > 2:
        at = tuple((turn * 7919 + 31 * d) % size for d, size in enumerate(tensor.shape[2:]))
        index: Any = (slice(None), slice(None), *at)
        return tensor[index]
    if tensor.ndim == 2 or tensor.is_contiguous():
        return tensor.reshape(-1, tensor.shape[-1])
    at = tuple((turn * 7919 + 31 * d) % size for d, size in enumerate(tensor.shape[1:-1]))
    index = (slice(None), *at)
    return tensor[index]


def _figures(c: Floats, starts: list[int]) -> Floats:
    """[6, slots]: mean, std, low, high, zeros a unit, share of dead units; from each unit's mean, variance, low, high,
    number of zeros, and whether it is dead. `starts`: the first unit of each slot."""
    widths = np.diff([*starts, c.shape[1]])
    with np.errstate(invalid="ignore", over="ignore"):
        means = np.add.reduceat(c, starts, axis=1) / widths
        between = np.add.reduceat((c[0] - np.repeat(means[0], widths)) ** 2, starts) / widths
        std = np.sqrt(means[1] + between)
    low, high = np.minimum.reduceat(c[2], starts), np.maximum.reduceat(c[3], starts)
    return np.stack([means[0], std, low, high, means[4], means[5]])
