"""Writes what the watches have to the journal, as soon as it has arrived from the device."""

import os
import platform
import sys
import time
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import torch

from whyloss.core.finding import Place
from whyloss.core.lines import place_at, user_line
from whyloss.journal import Journal
from whyloss.observe.leaves import Leaves
from whyloss.observe.optimizer import OptimizerWatch
from whyloss.observe.rows import Row, norms
from whyloss.observe.tensors import with_start

LAG = 8  # rows that may wait for their numbers before one is waited for
DEFAULT_SEED = 67280421310721  # what torch's generator has where nobody has seeded it


class Record:
    """The journal of this process, and the rows on their way to it. Raises OSError where it can't write."""

    def __init__(self, folder: Path, rank: int, every: int) -> None:
        self.journal = Journal(folder, rank)
        self.folder = self.journal.folder
        self._waiting: deque[tuple[int, int, Row]] = deque()
        self._first_norms: torch.Tensor | None = None
        seed = torch.initial_seed()
        self.journal.event(
            "start",
            format=1,
            script=os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "",
            arguments=list(sys.argv[1:]),
            torch=str(torch.__version__),
            python=platform.python_version(),
            seeds=[] if seed == DEFAULT_SEED else [seed],
            pid=os.getpid(),
            every=every,
            time=time.time(),
        )

    def built(self, optimizer: Any, place: Place) -> None:
        self.journal.event("built", optimizer=type(optimizer).__name__, place=plain(place))

    def rows(self, watch: OptimizerWatch, rows: Iterable[Row]) -> None:
        self._waiting.extend((watch.index, watch.segment, row) for row in rows)
        self.drain(LAG)

    def drain(self, most: int = 0) -> None:
        """Writes the rows whose numbers have arrived, in order; waits only beyond `most` rows."""
        while self._waiting and (len(self._waiting) > most or self._waiting[0][2].ready):
            index, segment, row = self._waiting.popleft()
            self.journal.row(f"{row.table}-o{index}-s{segment}", row.step, row.complete())

    def segment(self, watch: OptimizerWatch, leaves: Leaves) -> None:
        """New tables, for columns that were laid anew."""
        self._trace(watch, leaves)
        for table, columns in watch.columns.items():
            self.journal.table(f"{table}-o{watch.index}-s{watch.segment}", list(columns))

    def _trace(self, watch: OptimizerWatch, leaves: Leaves) -> None:
        watch.mark_reached(leaves)
        self.journal.event("trace", **plain(watch.describe()))
        watch.described = _state(watch)

    def late(self, watch: OptimizerWatch, leaves: Leaves) -> None:
        """What became known since: new orders of events, loss ops, modules that ran, tensors reached."""
        for sequence in watch.calls.orders(watch.written["orders"]):
            self.journal.event("order", trace=watch.index, sequence=[plain(c) for c in sequence])
            watch.written["orders"] += 1
        for objective in watch.objectives[watch.written["objectives"] :]:
            self.journal.event("objective", trace=watch.index, objective=plain(objective))
            watch.written["objectives"] += 1
        if watch.segment >= 0 and watch.looked and watch.described != _state(watch):
            self._trace(watch, leaves)

    def idle(self, watch: OptimizerWatch, leaves: Leaves) -> None:
        """Describes an optimizer that has taken no step while another took many."""
        if watch.segment < 0 and watch.described is None:
            watch.tensors = with_start(watch.tensors)
            self._trace(watch, leaves)

    @torch.no_grad()
    def pending(self, backwards: int, loss: torch.Tensor | None, leaves: Leaves) -> None:
        """Backward calls without an update: are the weights at least changed by somebody else?"""
        weights = [w.detach() for w in leaves.alive() if w.is_floating_point()]
        if not weights:
            return
        now = norms(weights).to("cpu", torch.float64)
        if self._first_norms is None or self._first_norms.shape != now.shape:
            self._first_norms = now
        changed = not torch.equal(self._first_norms, now)
        value = float(loss) if loss is not None else float("nan")
        place = plain(place_at(*user_line()))
        self.journal.event("pending", backwards=backwards, loss=value, weights_changed=changed, place=place)


def _state(watch: OptimizerWatch) -> tuple[int, ...]:
    """What makes it worth describing an optimizer and its model anew."""
    ran, trained = (m.order is not None for m in watch.modules()), (p.requires_grad for _, p in watch.tensors)
    return watch.segment, sum(ran), sum(trained), min(watch.walks, 1)


def plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
