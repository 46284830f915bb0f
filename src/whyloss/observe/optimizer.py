"""Watches one optimizer: what it was given at each update, what it did with it, and in what order things happened."""

import weakref
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]
from torch.optim import Optimizer

from whyloss.core.finding import Place
from whyloss.core.run import Call, Module, Objective, Tensor
from whyloss.core.series import ABSENT
from whyloss.observe.activations import PARTS, Sketch
from whyloss.observe.graph import LossOp
from whyloss.observe.lines import place_at, user_line
from whyloss.observe.models import Owned, Root, owned_parameters
from whyloss.observe.rows import Row, norms
from whyloss.observe.targets import Targets

FIRST = 20  # updates that are observed in full, one by one
SPREADS = frozenset((0, 1, 2, 3, 5, 10, 19))  # updates before which the rows of each weight are compared
SEGMENTS = frozenset((0, 1, 2, 5, 10, 20))  # updates before which columns for new slots may be added
MOST_CALLS = 48  # in the order of events of one update
SETTINGS = (float, int, bool, str, type(None))
UPDATE_COLUMNS = ("seconds", "observer/seconds", "loss/train", "backwards", "order", "training")
CLIP_COLUMNS = ("clip/limit", "clip/norm", "clip/value")


class OptimizerWatch:
    """The rows of one optimizer. The observer calls it; it never touches what it looks at."""

    def __init__(self, index: int, optimizer: Optimizer, built: Place, every: int) -> None:
        self.index, self.built, self.every = index, built, every
        self._optimizer = weakref.ref(optimizer)
        self.step = 0
        self.step_place = Place()
        self.tensors: list[tuple[Tensor, torch.Tensor]] = []
        self.roots: list[Root] = []
        self.sketch: Sketch | None = None
        self.targets = Targets()
        self.objectives: list[Objective] = []
        self.losses: list[torch.Tensor] = []
        self.backwards = 0
        self.segment = -1
        self.columns: dict[str, dict[str, int]] = {}
        self.orders: dict[tuple[tuple[str, str | None, int | None], ...], int] = {}
        self._calls: list[tuple[str, str | None, int | None]] = []
        self._held: list[int] = []
        self._strong: list[torch.Tensor] = []  # while they are held, no other tensor can take their id
        self._weights: list[int] = []
        self._dead_rows: dict[int, tuple[torch.Tensor, int]] = {}
        self._leftover: list[torch.Tensor] = []
        self._cleared = False
        self._clip: tuple[float, torch.Tensor] | None = None
        self._clip_value: float | None = None
        self._snapshot: list[torch.Tensor] = []
        self._moving: list[int] = []
        self._with_closure = False
        self.update: Row | None = None
        self.sample: Row | None = None

    @property
    def optimizer(self) -> Optimizer:
        optimizer = self._optimizer()
        assert optimizer is not None  # the observer retires a watch with its optimizer
        return optimizer

    def release(self) -> None:
        """Lets go of everything that belongs to the training."""
        if self.sketch is not None:
            self.sketch.disarm()
        self.sketch, self.roots, self._strong, self._snapshot, self._dead_rows = None, [], [], [], {}
        self.tensors, self.losses = [], []

    # -- what to observe

    @property
    def observing(self) -> bool:
        """Whether the coming update is observed in full."""
        return self.step < FIRST or self.step % self.every == 0

    def parameters(self) -> list[torch.Tensor]:
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def layout_changed(self) -> bool:
        return self._held != [id(p) for p in self.parameters()]

    def lay_out(
        self, roots: list[Root], others: set[int], leaves: list[torch.Tensor], key: Callable[[Any], int]
    ) -> None:
        """Names every tensor of the optimizer and of its model.

        `others`: ids that belong to another optimizer. `leaves`: reached from the loss so far.
        """
        params = self.parameters()
        self._held = [id(p) for p in params]
        self._strong = params
        if self.sketch is None or [r.module for r in roots] != [r.module for r in self.roots]:
            if self.sketch is not None:
                self.sketch.disarm()
            self.sketch = Sketch(roots)
        self.roots = roots
        groups = {id(p): g for g, group in enumerate(self.optimizer.param_groups) for p in group["params"]}
        owned = owned_parameters(roots)
        known = {id(o.parameter) for o in owned}
        strays = [p for p in params if id(p) not in known]
        held = set(groups) | others
        strays += [t for t in leaves if id(t) not in known and id(t) not in held]
        owned += [_stray(p, i) for i, p in enumerate(strays)]
        reached = {id(t) for t in leaves}
        before = {t.key: t for t, _ in self.tensors}
        self.tensors = []
        for o in owned:
            if id(o.parameter) in others and id(o.parameter) not in groups:
                continue
            made = _tensor(o, key(o.parameter), groups.get(id(o.parameter)), id(o.parameter) in reached)
            self.tensors.append((_keep_start(made, before.get(made.key)), o.parameter))
        self._describe_start()

    def mark_reached(self, leaves: list[torch.Tensor]) -> None:
        """Notes which tensors the loss reached in the updates that have passed."""
        reached = {id(t) for t in leaves}
        self.tensors = [(replace(t, in_graph=id(p) in reached), p) for t, p in self.tensors]

    @property
    def segment_due(self) -> bool:
        """Whether modules or slots appeared that have no columns yet; asked at a few early updates only."""
        assert self.sketch is not None
        return self.segment < 0 or (self.sketch.changed and self.step in SEGMENTS)

    def open_segment(self) -> None:
        """Lays the columns anew; the journal opens new tables for them."""
        assert self.sketch is not None
        self.sketch.changed = False
        self.segment += 1
        names = [t.name for t, _ in self.tensors]
        held = [t.name for t, _ in self.tensors if t.in_optimizer]
        rates = [f"lr[{g}]" for g in range(len(self.optimizer.param_groups))]
        update = [*UPDATE_COLUMNS, *CLIP_COLUMNS, *rates, "grad/leftover", "grad/total", "found-inf"]
        update += [f"grad/norm[{n}]" for n in names]
        sample = ["objective/value", "target/entropy", "target/variance"]
        sample += [f"weight/norm[{n}]" for n in names] + [f"update/norm[{n}]" for n in held]
        weights = [t.name for t, _ in self.tensors if len(t.shape) > 1 and t.shape[0] > 1]
        sample += [f"rows/spread[{n}]" for n in weights] + [f"gradient/dead_rows[{n}]" for n in weights]
        sample += [f"activation/{p}[{s}]" for s in self.sketch.slots for p in PARTS]
        self.columns = {"updates": _indexed(update), "samples": _indexed(sample)}
        self._weights = [i for i, (t, _) in enumerate(self.tensors) if len(t.shape) > 1 and t.shape[0] > 1]
        self._moving = [i for i, (t, _) in enumerate(self.tensors) if t.in_optimizer]
        self._dead_rows = {}

    @torch.no_grad()
    def _describe_start(self) -> None:
        """Mean, std and largest |value| of tensors not seen before: one transfer, once."""
        new = [i for i, (t, p) in enumerate(self.tensors) if t.std is None and _readable(p)]
        if not new or self.step > 0:
            return
        figures = []
        for i in new:
            value = self.tensors[i][1].detach().float()
            figures += [value.mean(), value.std(correction=0), value.abs().amax()]
        read = torch.stack([f.to(figures[0].device) for f in figures]).tolist()
        for j, i in enumerate(new):
            t, p = self.tensors[i]
            mean, std, largest = read[3 * j : 3 * j + 3]
            self.tensors[i] = (replace(t, mean=mean, std=std, largest=largest), p)

    # -- events between updates

    def call(self, what: str, file: str | None, line: int | None) -> None:
        if len(self._calls) < MOST_CALLS:
            self._calls.append((what, file, line))

    def cleared(self) -> None:
        self._cleared = True

    @torch.no_grad()
    def backward_begins(self) -> None:
        """Looks for gradients that the last update left behind, at the first backward calls after it."""
        if not self.observing or self.step == 0 or self.backwards > 4 or self._cleared:
            return
        left = [p.grad for p in self.parameters() if p.grad is not None and _readable(p.grad)]
        if not left:
            self._cleared = True
        elif self.backwards == 0 or self._leftover:
            self._leftover.append(_total(norms(left)))

    def backward_done(self, loss: torch.Tensor | None, ops: list[LossOp]) -> None:
        self.backwards += 1
        if loss is not None and len(self.losses) < 1024:
            self.losses.append(loss)
        for op in ops:
            if op.objective not in self.objectives and len(self.objectives) < 8:
                self.objectives.append(op.objective)
        self.targets.add(ops)

    def clipped(self, limit: float, norm: torch.Tensor) -> None:
        self._clip = (limit, norm)

    def clipped_by_value(self, limit: float) -> None:
        self._clip_value = limit

    # -- the update

    @torch.no_grad()
    def before_step(self, with_closure: bool) -> None:
        file, line = user_line()
        self.call("step", file, line)
        if self.step_place.file is None:
            self.step_place = place_at(file, line)
        self._with_closure = with_closure
        observing = self.observing
        self.update = Row("updates", self.step, len(self.columns["updates"]))
        self.sample = Row("samples", self.step, len(self.columns["samples"])) if observing else None
        for g, group in enumerate(self.optimizer.param_groups):
            column = self.columns["updates"].get(f"lr[{g}]")
            if column is not None:
                self._put_rate(self.update, column, group.get("lr"))
        if not with_closure:
            self._gradients(self.update)
        if self.sample is not None:
            self._weights_before(self.sample)

    def _put_rate(self, row: Row, column: int, rate: Any) -> None:
        if isinstance(rate, torch.Tensor):
            row.later([column], [rate.detach().reshape(())])
        elif rate is not None:
            row.put(column, float(rate))

    def _gradients(self, row: Row) -> None:
        """Norms as the optimizer sees them, divided by the scale that a fused optimizer has still to take out."""
        columns = self.columns["updates"]
        live, values = [], []
        for t, p in self.tensors:
            grad = p.grad
            if grad is None:
                row.put(columns[f"grad/norm[{t.name}]"], ABSENT)
            elif _readable(grad):
                live.append(columns[f"grad/norm[{t.name}]"])
                values.append(_dense(grad))
        if not values:
            return
        made = torch.stack([n.to(values[0].device, torch.float64) for n in norms(values)])
        scale = getattr(self.optimizer, "grad_scale", None)
        if scale is not None:
            made = made / scale
            found = getattr(self.optimizer, "found_inf", None)
            if found is not None:
                row.later([columns["found-inf"]], [found.reshape(())])
        row.later(live, made)
        held = {columns[f"grad/norm[{t.name}]"] for t, _ in self.tensors if t.in_optimizer}
        of_optimizer = [i for i, c in enumerate(live) if c in held]
        if of_optimizer:
            part = made if len(of_optimizer) == len(live) else made[of_optimizer]
            row.later([columns["grad/total"]], [torch.linalg.vector_norm(part)])

    def _weights_before(self, row: Row) -> None:
        columns = self.columns["samples"]
        readable = [(t, _dense(p.detach())) for t, p in self.tensors if _readable(p)]
        row.later([columns[f"weight/norm[{t.name}]"] for t, _ in readable], norms([p for _, p in readable]))
        moving = [self.tensors[i][1].detach() for i in self._moving if _readable(self.tensors[i][1])]
        if [(s.shape, s.dtype, s.device) for s in self._snapshot] != [(m.shape, m.dtype, m.device) for m in moving]:
            self._snapshot = [torch.empty_like(m) for m in moving]
        if moving:
            torch._foreach_copy_(self._snapshot, moving)
        if self.step in SPREADS:
            self._spreads(row)
        if not self._with_closure:
            self._dead_row_shares(row)

    def _spreads(self, row: Row) -> None:
        """‖W − its first row‖ / ‖W‖ of every weight: 0 where all rows are the same."""
        weights = [(t, p.detach()) for t, p in (self.tensors[i] for i in self._weights) if _readable(p)]
        if not weights:
            return
        values = [p for _, p in weights]
        apart = norms(list(torch._foreach_sub(values, [p[:1].expand_as(p) for p in values])))
        whole = norms(values)
        first = values[0].device
        ratio = torch.stack(
            [(a / w.clamp_min(1e-45)).to(first, torch.float64) for a, w in zip(apart, whole, strict=True)]
        )
        columns = self.columns["samples"]
        row.later([columns[f"rows/spread[{t.name}]"] for t, _ in weights], ratio)

    def _dead_row_shares(self, row: Row) -> None:
        """For weights of modules with suspiciously silent units: the share of rows whose gradient has always been 0."""
        assert self.sketch is not None
        suspects = set(self.sketch.suspects())
        if not suspects:
            return
        columns = self.columns["samples"]
        for i in self._weights:
            t, p = self.tensors[i]
            if t.module not in suspects or p.grad is None or not _readable(p.grad):
                continue
            zero = p.grad.flatten(1).abs().amax(dim=1) == 0
            so_far, seen = self._dead_rows.get(i, (zero, 0))
            zero = zero & so_far
            self._dead_rows[i] = (zero, seen + 1) if seen < 40 else (zero & so_far, 0)
            row.later([columns[f"gradient/dead_rows[{t.name}]"]], [zero.double().mean()])

    @torch.no_grad()
    def after_step(self, seconds: float, observer_seconds: float) -> list[Row]:
        """The rows of this update; their numbers may still be on the device."""
        assert self.update is not None
        row, columns = self.update, self.columns["updates"]
        if self._with_closure:
            self._gradients(row)
        self._losses(row)
        self._clips(row)
        if self.step > 0 and (self._cleared or self._leftover):
            if self._cleared:
                row.put(columns["grad/leftover"], 0.0)
            else:
                row.later([columns["grad/leftover"]], [torch.stack(self._leftover).amin()])
        row.put(columns["seconds"], seconds)
        row.put(columns["observer/seconds"], observer_seconds)
        row.put(columns["backwards"], self.backwards)
        row.put(columns["order"], self._order_index())
        if self.roots:
            row.put(columns["training"], float(self.roots[0].module.training))
        rows = [row]
        if self.sample is not None:
            self._updates_done(self.sample)
            rows.append(self.sample)
        for made in rows:
            made.fetch()
        self._next()
        return rows

    def _losses(self, row: Row) -> None:
        """The mean over micro-batches; under a closure, the loss at which the update began."""
        if not self.losses:
            return
        if self._with_closure:
            value = self.losses[0]
        else:
            value = torch.stack([v.to(self.losses[0].device, torch.float64) for v in self.losses]).mean()
        row.later([self.columns["updates"]["loss/train"]], [value])

    def _clips(self, row: Row) -> None:
        columns = self.columns["updates"]
        if self._clip is not None:
            row.put(columns["clip/limit"], self._clip[0])
            row.later([columns["clip/norm"]], [self._clip[1]])
        if self._clip_value is not None:
            row.put(columns["clip/value"], self._clip_value)

    def _updates_done(self, row: Row) -> None:
        columns = self.columns["samples"]
        moving = [(t, p.detach()) for t, p in (self.tensors[i] for i in self._moving) if _readable(p)]
        if moving and len(moving) == len(self._snapshot):
            torch._foreach_sub_(self._snapshot, [p for _, p in moving])
            row.later([columns[f"update/norm[{t.name}]"] for t, _ in moving], norms(self._snapshot))
        assert self.sketch is not None
        self.sketch.reduce(row, columns)
        self.targets.put(row, columns)

    def skip(self) -> None:
        """The loss scaler left this update out: what was gathered for it is forgotten."""
        self.step -= 1
        self._next()

    def _order_index(self) -> int:
        sequence = tuple(self._calls)
        if sequence not in self.orders and len(self.orders) < 32:
            self.orders[sequence] = len(self.orders)
        return self.orders.get(sequence, -1)

    def _next(self) -> None:
        self.step += 1
        self.losses, self.backwards, self._calls, self._leftover = [], 0, [], []
        self._cleared, self._clip, self._clip_value = False, None, None
        self.update = self.sample = None

    # -- description

    def describe(self) -> dict[str, Any]:
        """What the journal's `trace` event holds."""
        group = self.optimizer.param_groups[0] if self.optimizer.param_groups else {}
        return {
            "trace": self.index,
            "segment": self.segment,
            "optimizer": type(self.optimizer).__name__,
            "place": self.built,
            "step_place": self.step_place,
            "settings": {k: v for k, v in group.items() if k != "params" and isinstance(v, SETTINGS)},
            "groups": len(self.optimizer.param_groups),
            "model": type(self.roots[0].module).__name__ if self.roots else "",
            "device": str(self.tensors[0][1].device) if self.tensors else "",
            "tensors": [t for t, _ in self.tensors],
            "modules": self.modules(),
        }

    def modules(self) -> list[Module]:
        return list(self.sketch.modules.values()) if self.sketch is not None else []

    def sequences(self) -> list[list[Call]]:
        return [[Call(*c) for c in sequence] for sequence in self.orders]


def _indexed(names: Iterable[str]) -> dict[str, int]:
    return {name: i for i, name in enumerate(dict.fromkeys(names))}


def _keep_start(tensor: Tensor, before: Tensor | None) -> Tensor:
    """A tensor that was there in an earlier segment keeps what it started as."""
    if before is None:
        return tensor
    return replace(tensor, mean=before.mean, std=before.std, largest=before.largest)


def _stray(parameter: torch.Tensor, index: int) -> Owned:
    """A tensor that no module in memory has."""
    return Owned(parameter, f"tensor{index}", "", "", in_model=False, user_code=True)


def _tensor(owned: Owned, key: int, group: int | None, reached: bool) -> Tensor:
    p = owned.parameter
    uninitialised = isinstance(p, UninitializedTensorMixin)
    return Tensor(
        key=key,
        name=owned.name,
        module=owned.module,
        kind=owned.kind,
        shape=() if uninitialised else tuple(p.shape),
        dtype=str(p.dtype).removeprefix("torch."),
        trainable=p.requires_grad,
        in_optimizer=group is not None,
        group=group or 0,
        in_model=owned.in_model,
        in_graph=reached,
        user_code=owned.user_code,
    )


def _readable(t: torch.Tensor) -> bool:
    """Has plain or sparse values here: not lazy, empty, integer or sharded over processes."""
    if isinstance(t, UninitializedTensorMixin) or hasattr(t, "_local_tensor"):
        return False
    return t.numel() > 0 and (t.is_floating_point() or t.is_complex()) and t.layout in (torch.strided, torch.sparse_coo)


def _dense(t: torch.Tensor) -> torch.Tensor:
    """The values of a sparse tensor, repeated indices added up."""
    if t.layout == torch.sparse_coo:
        t = t.coalesce().values()  # type: ignore[no-untyped-call]
    return t


def _total(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.linalg.vector_norm(torch.stack([p.to(parts[0].device, torch.float64) for p in parts]))
