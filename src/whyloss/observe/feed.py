"""Follows what the outermost modules are given: training batches, and passes without gradients that evaluate."""

import sys
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import torch
from torch import nn

from whyloss.core.feed import Draw, Evaluation, Fed, Loader, eval_loss_name
from whyloss.core.finding import Place
from whyloss.core.lines import place_at, user_frames, user_line
from whyloss.observe.activations import Guard
from whyloss.observe.draws import Draws
from whyloss.observe.eval_losses import EvalLosses
from whyloss.observe.examples import Numbers, example_numbers
from whyloss.observe.record import Record, plain
from whyloss.tape.modes import insert_mode, remove_mode

MOST_PASSES = 512  # of training, and of each evaluation, whose batches are looked at
MOST_EXAMPLES = 100_000  # whose numbers are kept
MOST_EVALUATIONS = 32
MOST_PENDING = 4  # passes before one backward pass that count as its batch
SEARCHED = 2  # passes of each evaluation that are searched for dropout
DEPTH = 5  # frames of the user's that tell evaluations apart


@dataclass
class _Source:
    """A data set that loaders at one line were iterated over, and the round it is in."""

    facts: Loader
    iterator: int = 0  # id of the one that gives batches now
    rounds: int = 0
    batches: int = 0
    seen: set[int] = field(default_factory=set)  # whole batches of this round

    def loader(self) -> Loader:
        return replace(self.facts, rounds=self.rounds, batches=self.batches)


@dataclass
class _Group:
    """The passes of one evaluation."""

    facts: Evaluation
    source: _Source | None
    numbers: set[int] = field(default_factory=set)
    last: int | None = None  # number of the last batch
    written: int = 0  # sweeps at which it was last written
    draws: list[Draw] = field(default_factory=list)


class Feed:
    """Everything here is called within the observer's guard. `record` gives None until there is a journal."""

    def __init__(
        self,
        guard: Guard,
        record: Callable[[], Record | None],
        updates: Callable[[], int],
        path: Callable[[nn.Module], str],
    ) -> None:
        self._record, self._updates, self._path = record, updates, path
        self._losses = EvalLosses(guard)
        self._sources: dict[Any, _Source] = {}
        self._fresh: _Source | None = None  # the loader whose batch no pass has had yet
        self._pending: list[tuple[Numbers | None, _Source | None]] = []
        self._waiting: deque[tuple[Numbers, Callable[[list[int]], None]]] = deque()
        self._trained: set[int] = set()
        self._slice: tuple[weakref.ref[torch.Tensor], tuple[Any, ...]] | None = None
        self._fed = Fed(passes=0, examples=0, distinct=0)
        self._origins: dict[int, int] = {}  # id of a source → training batches that came from it
        self._groups: dict[Any, _Group] = {}
        self._group: _Group | None = None  # of the sweep that is running
        self._swept = 0  # passes of that sweep
        self._at: tuple[Any, ...] = ()  # where its last pass was called
        self._searching: Draws | None = None

    # -- loaders

    def iterates(self, loader: Any, iterator: Any) -> None:
        """A loader was asked for an iterator."""
        for other in self._sources.values():
            other.iterator = 0 if other.iterator == id(iterator) else other.iterator
        line = user_line()
        key = (id(getattr(loader, "dataset", loader)), line)
        if key not in self._sources and len(self._sources) >= MOST_EVALUATIONS:
            return
        source = self._sources.setdefault(key, _Source(_describe(loader, place_at(*line))))
        source.iterator = id(iterator)
        source.rounds += 1
        source.seen.clear()

    def gives(self, iterator: Any) -> None:
        """An iterator gave a batch."""
        source = next((s for s in self._sources.values() if s.iterator == id(iterator)), None)
        if source is not None:
            source.batches += 1
            self._fresh = source

    # -- forward passes of outermost modules

    def begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if torch.is_grad_enabled():
            self._losses.leave()
            self._sweep_ends()
            self._training_pass(args, kwargs)
        else:
            self._evaluation_pass(module, args, kwargs)

    def ends(self) -> None:
        searched, self._searching = self._searching, None
        if searched is not None:
            remove_mode(searched)
            if self._group is not None:
                self._group.draws += searched.seen

    def backward_begins(self) -> None:
        self._losses.leave()
        self._sweep_ends()

    def updated(self) -> None:
        """An evaluation may follow."""
        if self._groups:
            self._losses.watch()

    def compiles(self) -> None:
        """Something is compiled: a changed loss function would be compiled again."""
        self._losses.leave()
        self._losses.off = True

    def backward_done(self) -> None:
        """What was passed through the model before it was a training batch."""
        pending, self._pending = self._pending, []
        for numbers, source in pending if len(pending) <= MOST_PENDING else pending[-1:]:
            if numbers is not None:
                self._waiting.append((numbers, partial(self._train_on, source)))
        self._drain()

    def finish(self) -> None:
        self._sweep_ends()
        self._drain(wait=True)
        self._write_fed()
        for group in self._groups.values():
            self._write(group)

    def release(self) -> None:
        """Takes everything out of torch again, and lets go."""
        self._losses.leave()
        if self._searching is not None:
            remove_mode(self._searching)
        self._searching, self._group, self._pending = None, None, []
        self._sources, self._groups = {}, {}
        self._waiting.clear()

    def _drain(self, *, wait: bool = False) -> None:
        while self._waiting and (wait or self._waiting[0][0].ready):
            numbers, use = self._waiting.popleft()
            use(numbers.read())

    # -- training

    @property
    def _looking(self) -> bool:
        return self._fed.passes < MOST_PASSES and len(self._trained) < MOST_EXAMPLES

    def _training_pass(self, args: Any, kwargs: Any) -> None:
        source, self._fresh = self._fresh, None
        self._look_at_slice(args)
        if self._looking and len(self._pending) <= MOST_PENDING:
            self._pending.append((example_numbers(args, kwargs), source))

    def _look_at_slice(self, args: Any) -> None:
        """A batch cut out of a larger tensor at each pass, always at the same place."""
        batch = args[0] if args and isinstance(args[0], torch.Tensor) and args[0].ndim else None
        before, self._slice = self._slice, None
        if batch is None or batch._base is None or not len(batch):
            return
        size = batch.numel() * batch.element_size()
        whole = batch.untyped_storage().nbytes() * len(batch) // size if size else 0
        self._slice = weakref.ref(batch), (batch.data_ptr(), batch._version, tuple(batch.shape))
        if before is not None and before[0]() is not batch and before[1] == self._slice[1] and whole >= 2 * len(batch):
            place = self._fed.slice_place if self._fed.same_slice else place_at(*user_line())
            self._fed = replace(self._fed, same_slice=self._fed.same_slice + 1, whole=whole, slice_place=place)

    def _train_on(self, source: _Source | None, numbers: list[int]) -> None:
        if not self._looking:
            return
        self._trained.update(numbers)
        kinds = len(set(numbers))
        whole = hash(tuple(numbers))
        if source is not None:
            self._origins[id(source)] = self._origins.get(id(source), 0) + 1
        self._fed = replace(
            self._fed,
            passes=self._fed.passes + 1,
            examples=self._fed.examples + len(numbers),
            distinct=len(self._trained),
            size=max(self._fed.size, len(numbers)),
            constant=self._fed.constant + (kinds == 1 and len(numbers) > 1),
            twins=self._fed.twins + len(numbers) - kinds,
            repeated=self._fed.repeated + (source is not None and whole in source.seen),
            of_loader=self._fed.of_loader + (source is not None),
        )
        if source is not None:
            source.seen.add(whole)
        if self._fed.passes & (self._fed.passes - 1) == 0:
            self._write_fed()

    def _write_fed(self) -> None:
        record = self._record()
        if record is None or not self._fed.passes:
            return
        main = max(self._sources.values(), key=lambda s: self._origins.get(id(s), 0), default=None)
        known = main is not None and id(main) in self._origins
        fed = replace(self._fed, loader=main.loader() if main is not None and known else None)
        record.journal.event("fed", **plain(fed))

    # -- evaluation

    def _evaluation_pass(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        group = self._group_of(module)
        if group is None:
            return
        before, facts = self._group, group.facts
        if before is not group:
            self._sweep_ends()
            self._group, group.last, self._swept = group, None, 0
        self._swept += 1
        self._losses.watch()
        group.facts = facts = replace(
            facts,
            passes=facts.passes + 1,
            sweeps=facts.sweeps + (before is not group),
            last=self._updates(),
            training=facts.training + module.training,
        )
        self._look_at_modes(group, module)
        if facts.passes <= MOST_PASSES and len(group.numbers) < MOST_EXAMPLES:
            self._look_at_batch(group, args, kwargs)
        if not module.training and facts.looked_for_draws < SEARCHED and _searchable(module):
            group.facts = replace(group.facts, looked_for_draws=facts.looked_for_draws + 1)
            self._searching = Draws()
            insert_mode(self._searching)

    def _group_of(self, module: nn.Module) -> _Group | None:
        """By the frames that called; within a sweep, and with no new loader, the innermost one is enough."""
        source = self._fresh if self._fresh is not None else self._group.source if self._group else None
        self._fresh = None
        frames = list(islice(user_frames(sys._getframe(1)), 1 if self._group is not None else DEPTH))
        at = (id(module), id(source), *_lines(frames[:1]))
        if self._group is not None and at == self._at:
            return self._group
        frames = list(islice(user_frames(sys._getframe(1)), DEPTH))
        self._at, key = at, (id(module), id(source), *_lines(frames))
        if key not in self._groups and len(self._groups) < MOST_EVALUATIONS:
            self._groups[key] = _Group(self._describe(module, frames), source)
        return self._groups.get(key)

    def _describe(self, module: nn.Module, frames: list[FrameType]) -> Evaluation:
        return Evaluation(
            index=len(self._groups),
            module=self._path(module),
            model=type(module).__name__,
            places=tuple(place_at(f.f_code.co_filename, f.f_lineno) for f in frames),
            functions=tuple(f.f_code.co_name for f in frames),
            first=self._updates(),
        )

    def _look_at_modes(self, group: _Group, module: nn.Module) -> None:
        facts = group.facts
        if module.training and facts.training == 1:
            group.facts = replace(facts, active=_active(module))
        elif not module.training and facts.passes - facts.training == 1:
            group.facts = replace(facts, deliberate=_active(module))

    def _look_at_batch(self, group: _Group, args: Any, kwargs: Any) -> None:
        found = example_numbers(args, kwargs)
        if found is not None:
            self._waiting.append((found, partial(self._evaluated_on, group)))
            self._drain()

    def _evaluated_on(self, group: _Group, numbers: list[int]) -> None:
        group.numbers.update(numbers)
        whole = hash(tuple(numbers))
        facts, again = group.facts, whole == group.last
        group.facts = replace(facts, examples=facts.examples + len(numbers), again=facts.again + again)
        group.last = whole

    def _sweep_ends(self) -> None:
        group, self._group, self._at = self._group, None, ()
        if group is None:
            return
        value, calls = self._losses.take()
        group.facts = replace(group.facts, losses=group.facts.losses + calls)
        record = self._record()
        if record is not None and value is not None and calls >= self._swept:  # else a part of it was not seen
            record.journal.metrics(self._updates(), {eval_loss_name(group.facts.index): value})
        if group.facts.sweeps & (group.facts.sweeps - 1) == 0 and group.facts.sweeps > group.written:
            self._write(group)

    def _write(self, group: _Group) -> None:
        record = self._record()
        if record is None:
            return
        group.written = group.facts.sweeps
        facts = replace(
            group.facts,
            distinct=len(group.numbers),
            shared=len(group.numbers & self._trained),
            loader=group.source.loader() if group.source is not None else None,
            draws=tuple(dict.fromkeys(group.draws)),
        )
        record.journal.event("evaluation", **plain(facts))


def _describe(loader: Any, place: Place) -> Loader:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", sampler)
    return Loader(
        examples=_length(getattr(loader, "dataset", None)),
        batch=getattr(loader, "batch_size", None),
        sampler=type(inner).__name__,
        replacement=bool(getattr(inner, "replacement", False)),
        workers=int(getattr(loader, "num_workers", 0) or 0),
        place=place,
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001 - the user's __len__, or none
        return None


def _lines(frames: list[FrameType]) -> list[tuple[str, int]]:
    return [(f.f_code.co_filename, f.f_lineno) for f in frames]


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
