"""The passes without gradients that a script makes of its model, told apart by the lines that led to them."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from whyloss.core.feed import Draw, Evaluation, eval_loss_name
from whyloss.core.lines import place_at, user_frames
from whyloss.observe.activations import Guard
from whyloss.observe.draws import Draws
from whyloss.observe.eval_losses import EvalLosses
from whyloss.observe.examples import Arriving, continuous, discrete, example_numbers
from whyloss.observe.loaders import Source
from whyloss.observe.record import Record, plain
from whyloss.tape.modes import insert_mode, remove_mode

MOST_PASSES = 512  # of each evaluation, whose batches are looked at
MOST_EXAMPLES = 100_000  # of each, whose numbers are kept
MOST_EVALUATIONS = 32
SEARCHED = 2  # passes of each that are searched for dropout
DEPTH = 5  # frames of the user's that tell evaluations apart


@dataclass
class _Group:
    """The passes of one evaluation, counted as they come."""

    facts: Evaluation  # what is known from its first pass
    source: Source | None
    searchable: bool
    passes: int = 0
    training: int = 0
    sweeps: int = 0
    last_update: int = 0
    examples: int = 0
    twins: int = 0
    again: int = 0
    losses: int = 0
    mixed: int = 0
    searched: int = 0
    numbers: set[int] = field(default_factory=set)
    batch: int | None = None  # number of the last batch
    draws: list[Draw] = field(default_factory=list)
    written: int = 0  # sweeps at which it was last written

    def evaluation(self, trained: set[int]) -> Evaluation:
        return replace(
            self.facts,
            passes=self.passes,
            training=self.training,
            sweeps=self.sweeps,
            last=self.last_update,
            examples=self.examples,
            twins=self.twins,
            again=self.again,
            losses=self.losses,
            mixed=self.mixed,
            looked_for_draws=self.searched,
            distinct=len(self.numbers),
            shared=len(self.numbers & trained),
            loader=self.source.loader() if self.source is not None else None,
            draws=tuple(dict.fromkeys(self.draws)),
        )


class Evaluations:
    """Everything here is called within the observer's guard. A sweep is a run of passes of one evaluation, between
    which nothing is trained. `trained`: numbers of the examples that were trained on."""

    def __init__(
        self,
        guard: Guard,
        record: Callable[[], Record | None],
        updates: Callable[[], int],
        path: Callable[[nn.Module], str],
        trained: set[int],
    ) -> None:
        self._record, self._updates, self._path, self._trained = record, updates, path, trained
        self._losses = EvalLosses(guard)
        self._arriving = Arriving()
        self._groups: dict[Any, _Group] = {}
        self._group: _Group | None = None  # of the sweep that is running
        self._swept = 0  # its passes
        self._searching: Draws | None = None

    def begins(self, module: nn.Module, args: Any, kwargs: Any, fresh: Source | None) -> None:
        """`fresh`: the source whose batch no pass has had yet."""
        before, group = self._group, self._group_of(module, fresh)
        if group is None:
            return
        if before is not group:
            self.sweep_ends()
            self._losses.forget()
            self._group, self._swept = group, 0
            group.batch, group.sweeps, group.mixed = None, group.sweeps + 1, 0
        self._losses.watch()
        self._swept += 1
        group.passes += 1
        group.training += module.training
        group.last_update = self._updates()
        self._look_at_modes(group, module)
        if group.passes == 1:
            group.facts = replace(group.facts, discrete=discrete(args, kwargs), continuous=continuous(args, kwargs))
        if group.passes <= MOST_PASSES and len(group.numbers) < MOST_EXAMPLES:
            self._arriving.add(example_numbers(args, kwargs), partial(_evaluated_on, group, self._trained))
        if group.searchable and group.searched < SEARCHED and not module.training:
            group.searched += 1
            self._searching = Draws()
            insert_mode(self._searching)

    def ends(self) -> None:
        searched, self._searching = self._searching, None
        if searched is not None:
            remove_mode(searched)
            if self._group is not None:
                self._group.draws += searched.seen

    def training_begins(self) -> None:
        """Loss functions are torch's own again before any of training runs."""
        self._losses.leave()
        self.sweep_ends()

    def updated(self) -> None:
        """An evaluation may follow."""
        if self._groups:
            self._losses.watch()

    def compiles(self) -> None:
        """Something is compiled: a changed loss function would be compiled again."""
        self._losses.leave()
        self._losses.off = True

    def sweep_ends(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        value, calls = self._losses.take()
        group.losses += calls
        record = self._record()
        if record is not None and value is not None and calls >= self._swept:  # else a part of it was not seen
            record.journal.metrics(self._updates(), {eval_loss_name(group.facts.index): value})
        if group.sweeps & (group.sweeps - 1) == 0 and group.sweeps > group.written:
            self._write(group)

    def finish(self) -> None:
        self.sweep_ends()
        self._arriving.take(wait=True)
        for group in self._groups.values():
            self._write(group)

    def release(self) -> None:
        self._losses.leave()
        self.ends()
        self._group, self._groups = None, {}
        self._arriving.clear()

    def _group_of(self, module: nn.Module, fresh: Source | None) -> _Group | None:
        """By the line that called, and the very calls that led there: one line may evaluate on two sets of data."""
        source = fresh if fresh is not None else self._group.source if self._group else None
        frames = list(islice(user_frames(sys._getframe(1)), DEPTH))
        led = [_call(f.f_code, f.f_lasti) for f in frames[1:]]
        key = id(module), id(source), *[(f.f_code, f.f_lineno) for f in frames[:1]], *led
        if key not in self._groups and len(self._groups) < MOST_EVALUATIONS:
            self._groups[key] = _Group(self._described(module, frames), source, _searchable(module))
        return self._groups.get(key)

    def _described(self, module: nn.Module, frames: list[FrameType]) -> Evaluation:
        return Evaluation(
            index=len(self._groups),
            module=self._path(module),
            model=type(module).__name__,
            places=tuple(place_at(f.f_code.co_filename, f.f_lineno) for f in frames),
            functions=tuple(f.f_code.co_name for f in frames),
            first=self._updates(),
        )

    def _look_at_modes(self, group: _Group, module: nn.Module) -> None:
        """At the first pass in each mode."""
        if module.training and group.training == 1:
            group.facts = replace(group.facts, active=_active(module))
        elif not module.training and group.passes - group.training == 1:
            group.facts = replace(group.facts, deliberate=_active(module))

    def _write(self, group: _Group) -> None:
        record = self._record()
        if record is not None:
            group.written = group.sweeps
            record.journal.event("evaluation", **plain(group.evaluation(self._trained)))


def _evaluated_on(group: _Group, trained: set[int], numbers: list[int]) -> None:
    whole = hash(tuple(numbers))
    known = len(group.numbers)
    group.numbers.update(numbers)
    group.mixed += 0 < len(trained.intersection(numbers)) < len(set(numbers))
    group.examples += len(numbers)
    if group.sweeps == 1 and whole != group.batch:
        group.twins += len(numbers) - (len(group.numbers) - known)
    group.again += whole == group.batch
    group.batch = whole


@lru_cache(maxsize=4096)
def _call(code: CodeType, at: int) -> tuple[CodeType, Any]:
    """The place in the source of the call that runs there: the instruction moves as the interpreter adapts."""
    return code, next(islice(code.co_positions(), at // 2, None), at)


def _active(module: nn.Module) -> tuple[str, ...]:
    """Paths of the dropout and normalisation modules that are in training mode."""
    return tuple(path for path, m in module.named_modules() if m.training and _has_modes(m))


def _has_modes(module: nn.Module) -> bool:
    """Whether it computes something else in training than in evaluation."""
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return bool(module.track_running_stats)
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    return isinstance(module, nn.RNNBase | nn.MultiheadAttention) and module.dropout > 0


def _searchable(module: nn.Module) -> bool:
    """A function mode around a compiled call would be compiled with it; torch's attention would leave its fast path."""
    own_paths = (nn.MultiheadAttention, nn.TransformerEncoderLayer, torch.jit.ScriptModule)
    return not any(
        isinstance(m, own_paths)
        or type(m).__name__ == "OptimizedModule"
        or getattr(m, "_compiled_call_impl", None) is not None
        for m in module.modules()
    )
