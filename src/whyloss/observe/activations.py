"""A sketch of every leaf module's output at an observed step: 32 rows each, copied into one buffer, reduced in batch.

Hooks are on the modules only while a step is observed. They copy and compare on the device, read nothing back, draw
no random number, and do nothing inside a compiled region.
"""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from whyloss.core.run import Module
from whyloss.core.series import Floats
from whyloss.observe.lines import user_place
from whyloss.observe.models import Root, siblings
from whyloss.observe.rows import Row

ROWS = 32
MOST_CALLS = 4  # slots of a module that runs several times in one forward pass
MOST_CHANNELS = 4096  # of one slot; wider outputs are sketched in their first channels
WINDOW = 20  # observed steps after which a window of dead units is full
SUSPECT = 0.1  # share of units without output in the sketch from which on all examples are looked at
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


class _Hook:
    """Picklable and copyable: a model saved or copied while it is observed carries a hook that does nothing."""

    def __init__(self, call: Any) -> None:
        self.call = call

    def __call__(self, *args: Any) -> None:
        self.call(*args)

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
    suspect: bool = False
    exact_since: int | None = None  # observed step of the module at which every example began to be looked at


class Sketch:
    """Watches the modules below some roots."""

    def __init__(self, roots: Iterable[Root]) -> None:
        self.modules: dict[str, Module] = {}
        self._watched: list[tuple[str, nn.Module]] = []
        for root in roots:
            for path, module in root.module.named_modules():
                if not any(module.children()) or module._parameters:
                    full = root.path(path)
                    self._watched.append((full, module))
                    around = tuple(root.path(p) for p in siblings(path, root.module))
                    self.modules[full] = Module(path=full, kind=type(module).__name__, siblings=around)
        self._roots = [root.module for root in roots]
        self._paths = {id(m): path for path, m in self._watched}
        self._handles: list[Any] = []
        self._slots: dict[str, _Slot] = {}
        self._calls: dict[str, int] = {}
        self._filled: set[str] = set()
        self._buffers: dict[torch.device, torch.Tensor] = {}
        self._high: dict[torch.device, list[torch.Tensor]] = {}  # largest per unit: this window, the one before
        self._observed = 0  # observed steps so far; also turns the choice of rows
        self._window = [0, 0]  # observed steps in this window and the one before
        self._order = 0
        self.changed = True  # modules or slots were added since the caller last looked

    # -- hooks

    def arm(self) -> None:
        """Before an observed step."""
        if self._handles:
            return
        self._calls, self._filled = {}, set()
        hook, before = _Hook(self._after_forward), _Hook(self._before_root)
        self._handles = [m.register_forward_hook(hook) for _, m in self._watched]
        self._handles += [m.register_forward_pre_hook(before) for m in self._roots]

    def disarm(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_root(self, module: nn.Module, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._calls = {}

    def _after_forward(self, module: nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        path = self._paths.get(id(module))
        recomputed = torch._C._current_graph_task_id() != -1  # checkpointing runs forward again inside backward
        if path is None or recomputed or not self._in_training(module):
            return
        self._ran(path)
        if torch.is_grad_enabled():
            self._sketch(path, module, output)

    def _in_training(self, module: nn.Module) -> bool:
        return module.training or torch.is_grad_enabled()

    def _ran(self, path: str) -> None:
        known = self.modules[path]
        if known.order is None:
            where = user_place()
            self.modules[path] = replace(known, order=self._order, place=where)
            self._order += 1
            self.changed = True

    @torch.no_grad()
    def _sketch(self, path: str, module: nn.Module, output: Any) -> None:
        call = self._calls.get(path, 0)
        self._calls[path] = call + 1
        tensor = _first_tensor(output)
        if (
            call >= MOST_CALLS
            or tensor is None
            or not tensor.is_floating_point()
            or tensor.ndim < 2
            or not tensor.numel()
        ):
            return
        tensor = tensor.detach()
        name = path if call == 0 else f"{path}:{call}"
        slot = self._slots.get(name) or self._new_slot(name, path, module, tensor)
        rows = _rows(tensor, slot.channels_first, self._observed)
        if rows.shape[1] < slot.width or tensor.device != slot.device:
            return
        buffer = self._buffers[slot.device][:, slot.start : slot.start + slot.width]
        picked = rows[:, : slot.width]
        if len(picked) >= ROWS:
            stride = len(picked) // ROWS
            buffer.copy_(picked[self._observed % stride :: stride][:ROWS])
        else:  # fewer examples than rows: they are repeated, which changes no mean, extreme or share
            buffer.copy_(picked[torch.arange(ROWS, device=slot.device) % len(picked)])
        if slot.suspect:
            self._look_at_all(slot, tensor)
        self._filled.add(name)

    def _new_slot(self, name: str, path: str, module: nn.Module, tensor: torch.Tensor) -> _Slot:
        first = _channels_first(module, tensor, list(self._slots.values()))
        width = min(tensor.shape[1] if first else tensor.shape[-1], MOST_CHANNELS)
        device = tensor.device
        if device not in self._buffers:
            self._buffers[device] = torch.zeros(ROWS, 0, device=device)
            self._high[device] = [torch.zeros(0, device=device), torch.zeros(0, device=device)]
        start = self._buffers[device].shape[1]
        grow = torch.zeros(ROWS, width, device=device)
        self._buffers[device] = torch.cat([self._buffers[device], grow], dim=1)
        lowest = torch.full((width,), -torch.inf, device=device)
        self._high[device] = [torch.cat([h, lowest]) for h in self._high[device]]
        slot = self._slots[name] = _Slot(name, path, first, start, width, device)
        known = self.modules[path]
        self.modules[path] = replace(known, slots=(*known.slots, name))
        self.changed = True
        return slot

    def _look_at_all(self, slot: _Slot, tensor: torch.Tensor) -> None:
        """The largest output of each unit over all examples, instead of the sampled rows."""
        last = 1 if slot.channels_first else tensor.ndim - 1
        others = [d for d in range(tensor.ndim) if d != last]
        largest = tensor.amax(dim=others)[: slot.width].float()
        current = self._high[slot.device][0][slot.start : slot.start + slot.width]
        torch.maximum(current, largest, out=current)

    # -- results

    @property
    def slots(self) -> list[str]:
        return list(self._slots)

    @torch.no_grad()
    def reduce(self, row: Row, columns: dict[str, int]) -> None:
        """Puts the figures of this observed step into the row."""
        self._observed += 1
        for device, buffer in self._buffers.items():
            slots = [s for s in self._slots.values() if s.device == device]
            self._reduce_device(row, columns, device, buffer, slots)
        self._turn_window()

    def _reduce_device(
        self, row: Row, columns: dict[str, int], device: torch.device, buffer: torch.Tensor, slots: list[_Slot]
    ) -> None:
        low, high = torch.aminmax(buffer, dim=0)
        mean = buffer.mean(0)
        std = (buffer - mean).square_().mean(0)  # two passes: no cancellation
        zeros = (buffer == 0).float().mean(0)
        filled = [s for s in slots if s.name in self._filled]
        window = self._high[device]
        for slot in filled:
            part = slice(slot.start, slot.start + slot.width)
            torch.maximum(window[0][part], high[part], out=window[0][part])
        dead = (torch.maximum(window[0], window[1]) <= 0).float()
        columnwise = torch.stack([mean, std + mean * mean, low, high, zeros, dead])
        width, seen = columnwise.shape[1], {s.name: self._seen(s) for s in filled}
        row.then(
            columnwise, lambda flat: self._put_all(row, columns, filled, flat.reshape(len(flat) // width, width), seen)
        )

    def _seen(self, slot: _Slot) -> int:
        """Observed steps that the slot's dead units were judged on, this one included."""
        seen = self._window[0] + 1 + self._window[1]
        return seen if slot.exact_since is None else min(seen, self._observed - slot.exact_since)

    def _put_all(self, row: Row, columns: dict[str, int], slots: list[_Slot], c: Floats, seen: dict[str, int]) -> None:
        for slot in slots:
            figures = _figures(c[:, slot.start : slot.start + slot.width])
            exact = slot.exact_since is not None and seen[slot.name] > 0
            for part, value in zip(PARTS, (*figures, seen[slot.name], exact), strict=True):
                column = columns.get(f"activation/{part}[{slot.name}]")
                if column is not None:
                    row.put(column, float(value))
            if figures[-1] >= SUSPECT and not slot.suspect and self._observed >= 3:
                self._suspect(slot)

    def _suspect(self, slot: _Slot) -> None:
        """From the next observed step on, judge this slot on all examples; what the sketch said is forgotten."""
        slot.suspect, slot.exact_since = True, self._observed
        for high in self._high[slot.device]:
            high[slot.start : slot.start + slot.width] = -torch.inf

    def suspects(self) -> list[str]:
        return [s.path for s in self._slots.values() if s.suspect]

    def _turn_window(self) -> None:
        self._window[0] += 1
        if self._window[0] >= WINDOW:
            self._window = [0, self._window[0]]
            for high in self._high.values():
                high[1] = high[0]
                high[0] = torch.full_like(high[1], -torch.inf)


def _first_tensor(output: Any) -> torch.Tensor | None:
    while isinstance(output, tuple | list) and output:
        output = output[0]
    return output if isinstance(output, torch.Tensor) else None


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


def _figures(c: Floats) -> tuple[float, float, float, float, float, float]:
    """mean, std, low, high, share of zeros, share of dead units from per-unit mean, mean square, low, high, zeros, dead."""
    mean, square = float(c[0].mean()), float(c[1].mean())
    std = float(np.sqrt(max(square - mean * mean, 0.0))) if np.isfinite(square) and np.isfinite(mean) else float("nan")
    return mean, std, float(c[2].min()), float(c[3].max()), float(c[4].mean()), float(c[5].mean())
