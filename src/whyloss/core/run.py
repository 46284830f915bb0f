"""Everything recorded of one training run, as plain data. Rules read this and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from whyloss.core.copies import Copy
from whyloss.core.feed import Evaluation, Fed
from whyloss.core.finding import Place
from whyloss.core.kept import Kept
from whyloss.core.lines import place_at
from whyloss.core.location import Located
from whyloss.core.probe import Probe
from whyloss.core.series import Floats, Series, Steps, absent, not_observed
from whyloss.core.step_graph import StepGraph


@dataclass(frozen=True, kw_only=True)
class Tensor:
    """A parameter that the optimizer holds, or that belongs to its model, or that the loss reaches."""

    key: int  # the same number means the same tensor, in every trace of the run
    name: str  # as in model.named_parameters(); `list[0].weight` where it was found in a plain Python container
    module: str  # path of the module that owns it; "" is the model itself
    kind: str  # class of that module
    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True  # requires_grad
    in_optimizer: bool = True
    group: int = 0  # parameter group, where in_optimizer
    in_model: bool = True  # reachable by model.parameters()
    in_graph: bool | None = None  # reached from the loss through autograd; None: the graph was not walked
    aliases: tuple[str, ...] = ()  # its other names, where modules share it
    user_code: bool = True  # the class that has the owning module as an attribute stands in the user's files
    # at the first step: of the values as they were before any update
    std: float | None = None
    mean: float | None = None
    largest: float | None = None  # |value|

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def fan_in(self) -> int:
        """Inputs of one unit of a weight, shape[1:] multiplied; 1 for a vector."""
        return int(np.prod(self.shape[1:], dtype=np.int64))


@dataclass(frozen=True, kw_only=True)
class Module:
    """A module that was watched. `order` is its place in the forward pass (None: it never ran while watched).

    A module called several times in one forward pass has a slot per call: `relu`, `relu:1`, …
    """

    path: str
    kind: str
    order: int | None = None
    siblings: tuple[str, ...] = ()  # other members of the ModuleList or ModuleDict that holds it
    place: Place = Place()  # the user's line that called it
    slots: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A loss operation that the backward pass started from. `kind` is torch's functional name of it."""

    kind: str
    classes: int | None = None  # width of the logits, for cross_entropy and nll_loss
    reduction: str = "mean"
    direct: bool = True  # the loss given to backward() is this op's value, scaled by constants at the most
    single: bool = True  # no other loss op was found beside it


@dataclass(frozen=True)
class Call:
    """One event of a training step: zero_grad, backward, unscale, clip_norm, clip_value, step or scheduler."""

    what: str
    file: str | None = None
    line: int | None = None

    @property
    def place(self) -> Place:
        """With the line's text, where the file is still there."""
        return replace(place_at(self.file, self.line), op=self.what)


@dataclass(frozen=True, eq=False)
class Table:
    """Columns over steps. `low` and `high` differ from `values` only where rows were thinned to a mean and a range."""

    steps: Steps
    columns: Mapping[str, int]
    values: Floats  # [rows, columns]
    low: Floats
    high: Floats

    @classmethod
    def empty(cls) -> "Table":
        none = np.zeros((0, 0))
        return cls(np.zeros(0, dtype=np.int64), {}, none, none, none)

    def series(self, column: str) -> Series | None:
        """The observed samples of a column; None where there is no such column or nobody ever looked."""
        if column not in self._read and column in self.columns:
            self._read[column] = self._series(self.columns[column])
        return self._read.get(column)

    @cached_property
    def _read(self) -> dict[str, Series | None]:
        """Columns that were asked for: many rules ask for the same."""
        return {}

    def _series(self, index: int) -> Series | None:
        values = np.ascontiguousarray(self.values[:, index])
        seen = ~(not_observed(values) | absent(values))
        if not seen.any():
            return None
        return Series(self.steps[seen], values[seen], self.low[seen, index], self.high[seen, index])

    def absent(self, column: str) -> Steps:
        """The steps at which the gradient was None."""
        index = self.columns.get(column)
        return self.steps[:0] if index is None else self.steps[absent(self.values[:, index])]

    def block(self, columns: list[str]) -> Floats:
        """[rows, len(columns)] as stored, marks included; NaN where a column is missing."""
        out = np.full((len(self.steps), len(columns)), np.nan)
        known = [i for i, c in enumerate(columns) if c in self.columns]
        out[:, known] = self.values[:, [self.columns[columns[i]] for i in known]]
        return out


@dataclass(frozen=True, eq=False, kw_only=True)
class Trace:
    """What was recorded of one optimizer's updates. Signals are named as in docs/glossary.md:
    `loss/train`, `lr[0]`, `grad/norm[fc1.weight]`, `activation/std[relu]`.

    `every` is the table with a row an update, `sampled` the one with a row each observed update.
    """

    index: int
    optimizer: str  # class name
    place: Place = Place()  # where the optimizer was built
    step_place: Place = Place()  # where the user calls step()
    settings: Mapping[str, float | str | bool | None] = field(default_factory=dict)  # of group 0
    groups: int = 1
    tensors: tuple[Tensor, ...] = ()
    modules: tuple[Module, ...] = ()
    objectives: tuple[Objective, ...] = ()
    orders: tuple[tuple[Call, ...], ...] = ()  # the distinct sequences of calls seen, first seen first
    model: str = ""  # class name of the outermost module
    skips: Mapping[str, str] = field(default_factory=dict)  # signal family → why it could not be observed
    graphs: tuple[StepGraph, ...] = ()  # the steps that were recorded, by step
    every: Table = field(default_factory=Table.empty)
    sampled: Table = field(default_factory=Table.empty)

    @property
    def updates(self) -> int:
        return int(self.every.steps[-1]) + 1 if len(self.every.steps) else 0

    def signal(self, name: str) -> Series | None:
        """The observed samples of a signal, or None."""
        found = self.every.series(name)
        return found if found is not None else self.sampled.series(name)

    @cached_property
    def loss(self) -> Series | None:
        return self.signal("loss/train")

    @property
    def trained(self) -> tuple[Tensor, ...]:
        """The tensors that this optimizer is to change."""
        return tuple(t for t in self.tensors if t.in_optimizer and t.trainable)

    def matrix(self, signal: str, tensors: tuple[Tensor, ...]) -> tuple[Steps, Floats]:
        """Rows over steps, a column a tensor, with the marks of `series.NOT_OBSERVED` and `series.ABSENT` kept."""
        names = [f"{signal}[{t.name}]" for t in tensors]
        table = self.every if names and names[0] in self.every.columns else self.sampled
        return table.steps, table.block(names)

    @cached_property
    def loss_place(self) -> Place:
        """The user's line that computes the loss, from the first step that was recorded; else the one that calls
        backward(), or at least step()."""
        ends = [op.place for graph in self.graphs[:1] for op in graph.ends]
        calls = [call.place for order in self.orders for call in order if call.what == "backward"]
        return next((place for place in (*ends, *calls) if place.file), self.step_place)

    def module(self, path: str) -> Module | None:
        return next((m for m in self.modules if m.path == path), None)

    def place_of_module(self, module: Module) -> Place:
        """The module and the user's line that calls it."""
        return replace(module.place, module=module.path or None)

    def depth(self, tensor: Tensor) -> int:
        """The order of the tensor's module in the forward pass; -1 where that is not known."""
        module = self.module(tensor.module)
        return -1 if module is None or module.order is None else module.order

    def place_of(self, tensor: Tensor) -> Place:
        """Module, parameter and the user's line that calls the module; where it is in none, the line that uses it."""
        module = self.module(tensor.module)
        where = module.place if module else self._first_use(tensor)
        return replace(where, module=tensor.module or None, parameter=tensor.name, op=None)

    def _first_use(self, tensor: Tensor) -> Place:
        for graph in self.graphs[:1]:
            numbers = {leaf.value for leaf in graph.leaves if leaf.role == "parameter" and leaf.name == tensor.name}
            return next((op.place for op in graph.ops if not numbers.isdisjoint(op.inputs)), Place())
        return Place()


@dataclass(frozen=True, kw_only=True)
class Pending:
    """Backward calls without any update since: counted at powers of two and at the end."""

    backwards: int
    loss: float
    weights_changed: bool  # since the first backward call
    place: Place = Place()


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of the run as a whole. Empty strings and None: not known."""

    script: str = ""
    arguments: tuple[str, ...] = ()
    torch: str = ""
    python: str = ""
    device: str = ""
    dtype: str = ""
    seeds: tuple[int, ...] = ()  # given to torch.manual_seed
    optimizers_built: tuple[Place, ...] = ()
    end: str = "running"  # finished | interrupted | terminated | exception | stopped | killed
    error: str = ""  # "ValueError: …" where end is exception
    detached: str = ""  # why whyloss stopped observing before the end
    seconds: float = 0.0  # from the first backward to the last event
    observer_seconds: float = 0.0  # spent inside whyloss in that time
    limits: tuple[str, ...] = ()  # what could not be observed, in words


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One training run."""

    traces: tuple[Trace, ...] = ()
    idle: tuple[Trace, ...] = ()  # optimizers that were built and have not taken a step
    pending: tuple[Pending, ...] = ()
    skipped_updates: tuple[tuple[int, int], ...] = ()  # (trace, step) that a loss scaler left out
    skipped_scales: tuple[float | None, ...] = ()  # its scale at each of them
    located: tuple[Located, ...] = ()  # where steps first turned non-finite
    metrics: Mapping[str, Series] = field(default_factory=dict)  # given by run.log(); loss/eval[i] of evaluation i
    fed: Fed | None = None  # the training batches that were looked at
    evaluations: tuple[Evaluation, ...] = ()
    kept: tuple[Kept, ...] = ()  # graphs of losses that outlived their backward pass, at 64, 128, 256, … of them
    probes: tuple[Probe, ...] = ()  # small experiments on recorded steps
    copies: tuple[Copy, ...] = ()  # of the trained models, that no optimizer holds; looked for at the end only
    facts: Facts = Facts()

    @property
    def updates(self) -> int:
        return sum(t.updates for t in self.traces)

    @property
    def over(self) -> bool:
        return self.facts.end != "running"


Mask = NDArray[np.bool_]
