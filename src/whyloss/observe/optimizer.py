"""Watches one optimizer: what it was given at each update, what it did with it, and in what order things happened."""

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from whyloss.core.finding import Place
from whyloss.core.initialisation import gates
from whyloss.core.lines import place_at, user_line
from whyloss.core.run import Module, Objective, Tensor
from whyloss.core.series import ABSENT, Floats
from whyloss.observe.activations import PARTS, Guard, Sketch
from whyloss.observe.calls import Calls
from whyloss.observe.held import HeldValues
from whyloss.observe.leaves import Leaves
from whyloss.observe.models import Root, owned_parameters
from whyloss.observe.rows import Row, fetch, norms
from whyloss.observe.targets import LABELS, Targets
from whyloss.observe.tensors import dense, describe, gradients, keep_start, readable, stray, with_start

FIRST = 20  # updates that are observed in full, one by one
SPREADS = frozenset((0, 1, 2, 3, 5, 10, 19))  # updates before which the rows of each weight are compared
SEGMENTS = frozenset((0, 1, 2, 5, 10, 20))  # updates before which columns for new slots may be added; later: 32, 64, …
WALKS = 3  # updates, and backward passes within each, at which the whole graph is walked
MOST_LOSSES = 1024  # of one update
WINDOW = 20  # observed updates after which a window of rows without gradient is full
SETTINGS = (float, int, bool, str, type(None))
COMPILED = "torch.compile hides the modules from which activations would be taken"
UPDATE_COLUMNS = ("seconds", "observer/seconds", "loss/train", "backwards", "order", "training")
CLIP_COLUMNS = ("clip/limit", "clip/norm", "clip/value")
WRITES = ("weight/writes", "weight/written")  # in-place writes to the tensors so far, before and after the update
COUNTS = ("target/fewest", "target/most")


class OptimizerWatch:
    """The rows of one optimizer. The observer calls it; it never touches what it looks at."""

    def __init__(self, index: int, optimizer: Optimizer, built: Place, every: int) -> None:
        self.index, self.built, self.every = index, built, every
        self._optimizer, self.kind = weakref.ref(optimizer), type(optimizer).__name__
        self.step = 0
        self.step_place = Place()
        self.tensors: list[tuple[Tensor, torch.Tensor]] = []
        self.roots: list[Root] = []
        self.sketch: Sketch | None = None
        self.targets = Targets()
        self.held_values = HeldValues()
        self.scale: torch.Tensor | None = None  # of the loss scaler; changed in place once the update is over
        self.calls = Calls()
        self.objectives: list[Objective] = []
        self.backwards = 0
        self.walks = WALKS  # updates left at which the graph is walked
        self.segment = -1
        self.columns: dict[str, dict[str, int]] = {}
        self.written = {"orders": 0, "objectives": 0}  # how much of them the journal has
        self.described: tuple[int, ...] | None = None  # what the journal's description of it says
        self.looked = False  # the last update was observed in full
        self._held: list[int] = []
        self._others: set[int] = set()
        self._strong: list[torch.Tensor] = []  # while they are held, no other tensor can take their id
        self._strays: dict[int, str] = {}
        self.trains = False  # the last backward pass found its model in train mode
        self._norms = torch.empty(0, device="cpu")  # of the gradients of the coming update
        self._figures: list[tuple[float, float]] = []  # loss and gradient norm of updates that have arrived
        self._gradient_columns: list[tuple[int, torch.Tensor, bool]] = []
        self._fewest = 2**31  # tensors that had a gradient at any one update
        self._dead_rows: dict[int, list[Any]] = {}
        self._losses: list[torch.Tensor] = []
        self._wiped: list[torch.Tensor] = []  # losses whose gradients were cleared before the update
        self._values: list[torch.Tensor] = []
        self._counts: list[torch.Tensor] = []  # targets that count in each backward pass
        self._summed: torch.Tensor | None = None  # norms of the gradients right after the last one of several
        self._leftover: list[torch.Tensor] = []
        self._cleared = False
        self._clip: tuple[int, float, torch.Tensor | None] | None = None
        self._clip_value: float | None = None
        self._snapshot: list[torch.Tensor] = []
        self._moving: list[tuple[Tensor, torch.Tensor]] = []
        self._closure = False
        self.update: Row | None = None
        self.sample: Row | None = None

    @property
    def optimizer(self) -> Optimizer | None:
        return self._optimizer()

    @property
    def evaluated(self) -> bool:
        """Within step(), after the first evaluation of a closure: what follows only repeats it."""
        return self.update is not None and self.backwards > 0

    def release(self) -> None:
        """Lets go of everything that belongs to the training."""
        if self.sketch is not None:
            self.sketch.disarm()
        self.sketch, self.roots, self._strong, self._snapshot, self._dead_rows = None, [], [], [], {}
        self.tensors, self._moving, self._losses, self._wiped, self._leftover = [], [], [], [], []
        self._gradient_columns, self.scale = [], None
        self.held_values = HeldValues()

    # -- what to observe

    @property
    def observing(self) -> bool:
        """Whether the coming update is observed in full."""
        return self.step < FIRST or self.step % self.every == 0

    @property
    def groups(self) -> list[dict[str, Any]]:
        optimizer = self.optimizer
        return optimizer.param_groups if optimizer is not None else []

    def parameters(self) -> list[torch.Tensor]:
        return [p for group in self.groups for p in group["params"]]

    def layout_stale(self, others: set[int], reached: list[torch.Tensor]) -> bool:
        """Whether there are tensors, here or with other optimizers, of which the layout does not know."""
        if self.segment < 0 or self._others != others or self._held != [id(p) for p in self.parameters()]:
            return True
        known = {id(p) for _, p in self.tensors} if self.walks else set()
        return self.walks > 0 and any(id(t) not in known for t in reached)

    @property
    def settled(self) -> bool:
        """Nothing can have changed since the last update but by exchanging tensors one for one."""
        count = sum(len(group["params"]) for group in self.groups)
        return self.segment >= 0 and not self.walks and count == len(self._held)

    def covered(self, tensors: Iterable[torch.Tensor]) -> bool:
        known = {id(p) for root in self.roots for p in root.module.parameters()}
        return bool(self.roots) and all(id(t) in known for t in tensors)

    def lay_out(
        self, roots: list[Root], others: set[int], reached: list[torch.Tensor], key: Callable[[Any], int]
    ) -> None:
        """Names every tensor of the optimizer and of its model. `others`: ids that belong to another optimizer."""
        params = self.parameters()
        if self._held and self._held != [id(p) for p in params]:
            self.walks = WALKS
        self._held, self._strong, self._others, self.roots = [id(p) for p in params], params, others, roots
        groups = {id(p): g for g, group in enumerate(self.groups) for p in group["params"]}
        owned = owned_parameters(roots)
        known = {id(o.parameter) for o in owned} | others
        for p in (*params, *reached):
            if id(p) not in known or (id(p) in groups and id(p) in others):
                known.add(id(p))
                owned.append(stray(p, self._strays.setdefault(key(p), f"tensor{len(self._strays)}")))
        before = {t.key: t for t, _ in self.tensors}
        mine = [o for o in owned if id(o.parameter) in groups or id(o.parameter) not in others]
        made = [(describe(o, key(o.parameter), groups.get(id(o.parameter))), o.parameter) for o in mine]
        self.tensors = [(keep_start(t, before.get(t.key)), p) for t, p in made]

    def watch_modules(self, guard: Guard, compiled: Callable[[nn.Module], bool], *, anew: bool = False) -> None:
        """A sketch of the modules of these roots, unless there is one."""
        if self.sketch is not None and not anew and self.sketch.of([r.module for r in self.roots]):
            return
        if self.sketch is not None:
            self.sketch.disarm()
        self.sketch = Sketch(self.roots, guard, compiled)

    @torch.no_grad()
    def mark_reached(self, leaves: Leaves) -> None:
        """Notes which tensors the losses reached so far, and which want a gradient now."""
        reached = {id(t) for t in leaves.alive()}
        self.tensors = [
            (replace(t, in_graph=leaves.reach(reached, p), trainable=p.requires_grad), p) for t, p in self.tensors
        ]

    @property
    def segment_due(self) -> bool:
        """Whether modules or slots appeared that have no columns yet; asked at a few updates only."""
        assert self.sketch is not None
        few = self.step in SEGMENTS or (self.step > max(SEGMENTS) and self.step & (self.step - 1) == 0)
        return self.segment < 0 or (self.sketch.changed and few)

    @torch.no_grad()
    def open_segment(self) -> None:
        """Lays the columns anew; the journal opens new tables for them."""
        assert self.sketch is not None
        if self.step == 0:
            self.tensors = with_start(self.tensors)
        self.sketch.changed = False
        self.segment += 1
        names = [t.name for t, _ in self.tensors]
        weights = [t.name for t, _ in self.tensors if _has_rows(t)]
        rates = [f"lr[{g}]" for g in range(len(self.groups))]
        update = [*UPDATE_COLUMNS, *CLIP_COLUMNS, *rates, "grad/leftover", "grad/total", "found-inf", "scale"]
        update += [f"grad/norm[{n}]" for n in names]
        sample = [
            "objective/value",
            *LABELS,
            "prediction/share",
            *COUNTS,
            "target/variance",
            "state/step",
            "state/tensors",
            "grad/summed",
            *WRITES,
        ]
        sample += [f"decay[{g}]" for g in range(len(self.groups))]
        sample += [f"weight/norm[{n}]" for n in names]
        sample += [f"update/norm[{t.name}]" for t, _ in self.tensors if t.in_optimizer]
        sample += [f"weight/held[{t.name}]" for t, _ in self.tensors if t.in_optimizer]
        sample += [f"rows/spread[{n}]" for n in weights] + [f"gradient/dead_rows[{n}]" for n in weights]
        sample += [f"activation/{p}[{s}]" for s in self.sketch.slots for p in PARTS]
        self.columns = {"updates": _indexed(update), "samples": _indexed(sample)}
        self._dead_rows = {}
        norm = self.columns["updates"]
        self._gradient_columns = [(norm[f"grad/norm[{t.name}]"], p, t.in_optimizer) for t, p in self.tensors]

    # -- events between updates

    def cleared(self) -> None:
        """All gradients were cleared. What a closure does within the update counts as its first evaluation did."""
        self._cleared = True
        if self.update is None and self._losses:
            self._wiped, self._losses, self._values = self._losses, [], []

    def backward_begins(self) -> None:
        """Looks for gradients that the last update left behind, at the first backward calls after it."""
        if self.observing and self.step and self.backwards <= 4 and len(self._leftover) <= 4 and not self._cleared:
            self._look_for_leftovers()

    @torch.no_grad()
    def _look_for_leftovers(self) -> None:
        left = gradients(self.parameters())
        if not left:
            self._cleared = True
        elif self.backwards == 0 or self._leftover:
            self._leftover.append(norms(left))

    def backward_done(
        self,
        loss: torch.Tensor | None,
        value: torch.Tensor | None,
        objectives: list[Objective],
        count: torch.Tensor | None = None,
    ) -> None:
        self.backwards += 1
        if self.backwards > 1 and self.step in SPREADS and not self.evaluated:
            self._summed = norms(gradients(self.parameters()))
        if count is not None and len(self._counts) < MOST_LOSSES:
            self._counts.append(count)
        if loss is not None and len(self._losses) < MOST_LOSSES:
            self._losses.append(loss)
        if value is not None and len(self._values) < MOST_LOSSES:
            self._values.append(value)
        self.objectives += [o for o in objectives if o not in self.objectives][: 8 - len(self.objectives)]
        if self.sketch is not None:
            self.sketch.pass_ends()
        if self.roots:
            self.trains = self.roots[0].module.training

    def clipped(self, parameters: list[torch.Tensor] | None, limit: float, norm: torch.Tensor | None) -> bool:
        """Of several calls before one update, the one over most of the parameters counts."""
        mine = self._held if parameters is None else {id(p) for p in parameters}.intersection(self._held)
        if mine and (self._clip is None or len(mine) >= self._clip[0]):
            self._clip = (len(mine), limit, norm)
        return bool(mine)

    def clipped_by_value(self, parameters: list[torch.Tensor], limit: float) -> bool:
        mine = {id(p) for p in parameters}.intersection(self._held)
        if mine:
            self._clip_value = limit
        return bool(mine)

    # -- the update

    def abandon(self) -> None:
        """An exception left step(): the update was not made, its gradients are still there."""
        self.update, self.sample, self._moving = None, None, []

    def step_called(self) -> None:
        file, line = user_line()
        self.calls.add("step", file, line)
        if self.step_place.file is None:
            self.step_place = place_at(file, line)

    @torch.no_grad()
    def before_step(self, closure: bool) -> None:
        self._closure = closure
        self.update = Row("updates", self.step, len(self.columns["updates"]))
        self.sample = Row("samples", self.step, len(self.columns["samples"])) if self.observing else None
        for g, group in enumerate(self.groups):
            column = self.columns["updates"].get(f"lr[{g}]")
            if column is not None:
                _put_rate(self.update, column, group.get("lr"))
            column = self.columns["samples"].get(f"decay[{g}]")
            if self.sample is not None and column is not None:
                _put_rate(self.sample, column, group.get("weight_decay"))
        if not closure:
            self._gradients(self.update)
        if self.sample is not None:
            self._weights_before(self.sample)

    def _gradients(self, row: Row) -> None:
        """Norms as the optimizer sees them, divided by the scale that a fused optimizer has still to take out."""
        columns = self.columns["updates"]
        live, values, held = [], [], []
        for column, p, in_optimizer in self._gradient_columns:
            grad = p.grad
            if grad is None:
                row.put(column, ABSENT)
            elif (plain := type(grad) is torch.Tensor and grad.layout == torch.strided) or readable(grad):
                live.append(column)
                values.append(grad if plain else dense(grad))
                if in_optimizer:
                    held.append(column)
        self._look_again(len(values))
        made = norms(values)
        scale, found = (getattr(self.optimizer, name, None) for name in ("grad_scale", "found_inf"))
        if values and isinstance(scale, torch.Tensor):
            made = made / scale.to(made.device, made.dtype)
        self._norms = made
        if isinstance(found, torch.Tensor):
            row.later([columns["found-inf"]], found)
        row.later(live, made)
        if held:
            row.lastly(lambda v: v.__setitem__(columns["grad/total"], _total(v[held])))

    def _look_again(self, live: int) -> None:
        """Fewer tensors than ever have a gradient: a layer may have been replaced, so the graph is walked anew."""
        if self.step >= WALKS and live < self._fewest:
            self.walks = max(self.walks, 2)
        self._fewest = min(self._fewest, live)

    def _weights_before(self, row: Row) -> None:
        columns = self.columns["samples"]
        there = [(t, dense(p.detach())) for t, p in self.tensors if readable(p)]
        row.later([columns[f"weight/norm[{t.name}]"] for t, _ in there], norms([p for _, p in there]))
        self._moving = [(t, p.detach()) for t, p in self.tensors if t.in_optimizer and _strided(p)]
        moving = [p for _, p in self._moving]
        if [(s.shape, s.dtype, s.device) for s in self._snapshot] != [(m.shape, m.dtype, m.device) for m in moving]:
            self._snapshot = [torch.empty_like(m) for m in moving]
        if moving:
            torch._foreach_copy_(self._snapshot, moving)
        row.put(columns[WRITES[0]], sum(p._version for _, p in self._moving))
        if self.step in SPREADS:
            self._spreads(row)
        if not self._closure:
            self._dead_row_shares(row)
            if self.held_values.due(self.step):
                self.held_values.look(row, columns, self.tensors)
        self._state(row)

    def _state(self, row: Row) -> None:
        """How far the optimizer's own memory goes back: its update counter, and how many tensors have any."""
        optimizer, columns = self.optimizer, self.columns["samples"]
        kept = [s for s in optimizer.state.values() if isinstance(s, dict) and s] if optimizer is not None else []
        row.put(columns["state/tensors"], len(kept))
        counter = kept[0].get("step") if kept else None
        if isinstance(counter, torch.Tensor) and counter.numel() == 1:
            row.later([columns["state/step"]], counter.detach().clone())
        elif isinstance(counter, int | float):
            row.put(columns["state/step"], counter)

    def _spreads(self, row: Row) -> None:
        """‖W − its first row‖ / ‖W‖ of every weight, gate by gate: 0 where all rows are the same."""
        weights = [(t, p.detach()) for t, p in self.tensors if _has_rows(t) and _strided(p)]
        values = [_by_gate(t, p) for t, p in weights]
        if not values:
            return
        columns = self.columns["samples"]
        spread = [columns[f"rows/spread[{t.name}]"] for t, _ in weights]
        whole = [columns[f"weight/norm[{t.name}]"] for t, _ in weights]
        row.later(spread, norms(torch._foreach_sub(values, [v[:, :1].expand_as(v) for v in values])))
        row.lastly(lambda v: v.__setitem__(spread, _ratio(v[spread], v[whole])))

    def _dead_row_shares(self, row: Row) -> None:
        """For weights of modules with suspiciously silent units: the share of rows whose gradient was 0 in this window
        and the one before."""
        assert self.sketch is not None
        suspects = self.sketch.suspects()
        columns = self.columns["samples"]
        for t, p in self.tensors if suspects else ():
            if t.module not in suspects or not _has_rows(t) or p.grad is None or not _strided(p.grad):
                continue
            zero = p.grad.flatten(1).abs().amax(1) == 0  # a third of aminmax on CPU
            state = self._dead_rows.setdefault(t.key, [torch.ones_like(zero), torch.ones_like(zero), 0])
            state[0], state[2] = state[0] & zero, state[2] + 1
            row.later([columns[f"gradient/dead_rows[{t.name}]"]], (state[0] & state[1]).double().mean())
            if state[2] >= WINDOW:
                self._dead_rows[t.key] = [torch.ones_like(zero), state[0], 0]

    @torch.no_grad()
    def after_step(self, seconds: float, observer_seconds: float) -> list[Row]:
        """The rows of this update; their numbers may still be on the device."""
        assert self.update is not None
        row, columns = self.update, self.columns["updates"]
        if self._closure:
            self._gradients(row)
        self._put_mean(row, columns["loss/train"], self._losses or self._wiped)
        self._clips(row)
        self._left(row, columns["grad/leftover"])
        row.put(columns["seconds"], seconds)
        row.put(columns["observer/seconds"], observer_seconds)
        row.put(columns["backwards"], self.backwards)
        if self.scale is not None:
            row.later([columns["scale"]], self.scale)
        row.put(columns["order"], self.calls.close())
        if self.roots:
            row.put(columns["training"], float(self.roots[0].module.training))
        loss, total = columns["loss/train"], columns["grad/total"]
        row.lastly(lambda v: self._figures.append((float(v[loss]), float(v[total]))))
        rows, self.looked = [row], self.sample is not None
        if self.sample is not None:
            self._updates_done(self.sample)
            rows.append(self.sample)
        fetch(rows)
        self._next()
        self.step += 1
        self.walks = max(0, self.walks - 1)
        return rows

    def _put_mean(self, row: Row, column: int, values: list[torch.Tensor]) -> None:
        """The mean over micro-batches; under a closure, the value with which the update began."""
        if len(values) == 1 or (values and self._closure):
            row.later([column], values[0])
        elif values:
            where = row.scratch(torch.stack([v.to(values[0].device, torch.float64) for v in values]))
            row.lastly(lambda v: v.__setitem__(column, v[where].mean()))

    def _left(self, row: Row, column: int) -> None:
        """The gradient that was there before this update's own; the least of what several backward calls found."""
        if self.step > 0 and self._cleared:
            row.put(column, 0.0)
        elif self._leftover:
            where = [row.scratch(part) for part in self._leftover]
            row.lastly(lambda v: v.__setitem__(column, min(_total(v[w]) for w in where)))

    def _clips(self, row: Row) -> None:
        columns = self.columns["updates"]
        if self._clip is not None:
            _, limit, norm = self._clip
            row.put(columns["clip/limit"], limit)
            row.later([columns["clip/norm"]] if norm is not None else [], norm if norm is not None else torch.empty(0))
        if self._clip_value is not None:
            row.put(columns["clip/value"], self._clip_value)

    def _updates_done(self, row: Row) -> None:
        columns = self.columns["samples"]
        if self._moving:
            row.put(columns[WRITES[1]], sum(p._version for _, p in self._moving))
            torch._foreach_sub_(self._snapshot, [p for _, p in self._moving])
            row.later([columns[f"update/norm[{t.name}]"] for t, _ in self._moving], norms(self._snapshot))
        self._put_mean(row, columns["objective/value"], self._values)
        if len(self._counts) > 1:
            counts = torch.stack([c.to(self._counts[0].device, torch.float64) for c in self._counts])
            row.later([columns[c] for c in COUNTS], torch.stack([counts.min(), counts.max()]))
        if self._summed is not None and len(self._summed):
            where = row.scratch(self._summed)
            row.lastly(lambda v: v.__setitem__(columns["grad/summed"], _total(v[where])))
        assert self.sketch is not None
        self.sketch.reduce(row, columns)
        self.targets.put(row, columns)

    def figures(self) -> list[tuple[float, float]]:
        """Loss and gradient norm of the updates whose numbers have arrived since this was last asked."""
        arrived, self._figures = self._figures, []
        return arrived

    @property
    def loss_finite(self) -> bool:
        """Whether all losses of the coming update are. Waits for the device."""
        if len(self._losses) == 1:
            return math.isfinite(float(self._losses[0]))
        return not self._losses or bool(torch.stack([x.double() for x in self._losses]).isfinite().all())

    def nonfinite(self) -> bool:
        """Whether a loss or a gradient of the coming update is not finite; a loss scaler looks after gradients itself.
        Waits for the device: once the update is made, what failed is gone."""
        if isinstance(getattr(self.optimizer, "found_inf", None), torch.Tensor):
            return not self.loss_finite
        total = self._norms.sum(dtype=torch.float64)
        for loss in self._losses:
            total = total + (loss if loss.device == total.device else loss.to(total.device))
        return not math.isfinite(float(total))

    def skip(self) -> None:
        """The loss scaler left this update out: what was gathered for it is forgotten."""
        self.calls.forget()
        self._next()

    def _next(self) -> None:
        self._losses, self._wiped, self._values, self.backwards, self._leftover = [], [], [], 0, []
        self._counts, self._summed = [], None
        self._cleared, self._clip, self._clip_value, self.scale = False, None, None, None
        self.update, self.sample, self._moving = None, None, []

    # -- description

    def describe(self) -> dict[str, Any]:
        """What the journal's `trace` event holds."""
        group = self.groups[0] if self.groups else {}
        return {
            "trace": self.index,
            "segment": self.segment,
            "optimizer": self.kind,
            "place": self.built,
            "step_place": self.step_place,
            "settings": {k: v for k, v in group.items() if k != "params" and isinstance(v, SETTINGS)},
            "groups": len(self.groups),
            "model": type(self.roots[0].module).__name__ if self.roots else "",
            "device": str(self.tensors[0][1].device) if self.tensors else "",
            "tensors": [t for t, _ in self.tensors],
            "modules": self.modules(),
            "skips": {"activation": COMPILED} if self.sketch is not None and self.sketch.blind else {},
        }

    def modules(self) -> list[Module]:
        return list(self.sketch.modules.values()) if self.sketch is not None else []


def _indexed(names: Iterable[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _put_rate(row: Row, column: int, rate: Any) -> None:
    if isinstance(rate, torch.Tensor):
        row.later([column], rate.detach().clone())
    elif rate is not None:
        row.put(column, float(rate))


def _by_gate(t: Tensor, p: torch.Tensor) -> torch.Tensor:
    """[gates, units, inputs]: the gates of one recurrent unit stand apart in its weight."""
    count = gates(t)
    return p.reshape(count if p.shape[0] % count == 0 else 1, -1, *p.shape[1:])


def _has_rows(t: Tensor) -> bool:
    return len(t.shape) > 1 and t.shape[0] > 1


def _strided(t: torch.Tensor) -> bool:
    return readable(t) and t.layout == torch.strided


def _ratio(part: Floats, whole: Floats) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(part / whole.clip(1e-300))


def _total(norms_of_parts: Floats) -> float:
    return float((norms_of_parts**2).sum() ** 0.5)
