"""Follows what the outermost modules are given: training batches, and passes without gradients that evaluate."""

import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from whyloss.core.feed import Fed
from whyloss.core.lines import place_at, user_line
from whyloss.observe.activations import Guard
from whyloss.observe.evaluations import Evaluations
from whyloss.observe.examples import Arriving, Numbers, example_numbers
from whyloss.observe.loaders import Loaders, Source
from whyloss.observe.record import Record, plain

MOST_PASSES = 512  # of training whose batches are looked at
MOST_EXAMPLES = 100_000  # whose numbers are kept
MOST_PENDING = 4  # passes before one backward pass that count as its batch


class Feed:
    """Everything here is called within the observer's guard. `record` gives None until there is a journal."""

    def __init__(
        self,
        guard: Guard,
        record: Callable[[], Record | None],
        updates: Callable[[], int],
        path: Callable[[nn.Module], str],
    ) -> None:
        self._record = record
        self._trained: set[int] = set()
        self._neighbours: set[tuple[int, int]] = set()
        self._fed = Fed(passes=0, examples=0, distinct=0)
        self._pending: list[tuple[Numbers | None, Source | None]] = []
        self._arriving = Arriving()
        self._slice: tuple[weakref.ref[torch.Tensor], tuple[Any, ...]] | None = None
        self.loaders = Loaders()
        self.evaluations = Evaluations(guard, record, updates, path, self._trained)

    def begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """An outermost forward pass."""
        source = self.loaders.take()
        if not torch.is_grad_enabled():
            self.evaluations.begins(module, args, kwargs, source)
            return
        self.evaluations.training_begins()
        if self._looking and len(self._pending) <= MOST_PENDING:
            self._look_at_slice(args)
            self._pending.append((example_numbers(args, kwargs), source))

    def ends(self) -> None:
        self.evaluations.ends()

    def backward_begins(self) -> None:
        self.evaluations.training_begins()

    def backward_done(self) -> None:
        """What was passed through the model before it was a training batch."""
        pending, self._pending = self._pending, []
        for numbers, source in pending if len(pending) <= MOST_PENDING else pending[-1:]:
            self._arriving.add(numbers, partial(self._train_on, source))

    def finish(self) -> None:
        self._arriving.take(wait=True)
        self.evaluations.finish()
        self._write()

    def release(self) -> None:
        """Takes everything out of torch again, and lets go."""
        self.evaluations.release()
        self._arriving.clear()
        self._pending, self._slice = [], None

    @property
    def _looking(self) -> bool:
        return self._fed.passes < MOST_PASSES and len(self._trained) < MOST_EXAMPLES

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

    def _train_on(self, source: Source | None, numbers: list[int]) -> None:
        if not self._looking:
            return
        self._trained.update(numbers)
        self._neighbours.update(pairwise(numbers))
        kinds, whole, fed = len(set(numbers)), hash(tuple(numbers)), self._fed
        self._fed = replace(
            fed,
            passes=fed.passes + 1,
            examples=fed.examples + len(numbers),
            distinct=len(self._trained),
            size=max(fed.size, len(numbers)),
            constant=fed.constant + (kinds == 1 and len(numbers) > 1),
            twins=fed.twins + len(numbers) - kinds,
            neighbours=len(self._neighbours),
            repeated=fed.repeated + (source is not None and whole in source.seen),
            of_loader=fed.of_loader + (source is not None),
        )
        if source is not None:
            source.trained += 1
            source.seen.add(whole)
        if self._fed.passes & (self._fed.passes - 1) == 0:
            self._write()

    def _write(self) -> None:
        record, main = self._record(), self.loaders.main
        if record is not None and self._fed.passes:
            fed = replace(self._fed, loader=main.loader() if main is not None else None)
            record.journal.event("fed", **plain(fed))
