"""Takes what the patches see, keeps one watch an optimizer, and writes the journal. Never raises into the training."""

import contextlib
import os
import platform
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer

from whyloss.core.errors import WhylossError
from whyloss.core.finding import Place
from whyloss.journal import Journal
from whyloss.observe.graph import LossOp, leaves, loss_ops
from whyloss.observe.lines import place_at, user_line
from whyloss.observe.models import Root, find_roots
from whyloss.observe.optimizer import OptimizerWatch
from whyloss.observe.rows import Row, norms

WALKS = 3  # updates of each optimizer at which the whole graph is walked
MOST_WATCHES = 16
_OBSERVE = os.path.dirname(os.path.abspath(__file__))
LAG = 8  # rows that may wait for their numbers before one is waited for


class Observer:
    """One process's observation. `every`: full observation each so many updates, after the first 20."""

    def __init__(self, folder: Path, *, every: int = 10, rank: int = 0, models: tuple[nn.Module, ...] = ()) -> None:
        self.folder, self.every, self.rank, self.given = folder, every, rank, models
        self.journal: Journal | None = None
        self.watches: dict[int, OptimizerWatch] = {}
        self.active = True
        self.failure: str | None = None
        self.on_detach: Callable[[], None] = lambda: None
        self.on_update: Callable[[int], None] | None = None
        self._thread = threading.get_ident()
        self._built: dict[int, tuple[weakref.ref[Optimizer], Place]] = {}
        self._ignored: set[int] = set()
        self._keys: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._key_of: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._leaves: dict[int, weakref.ref[torch.Tensor]] = {}
        self._scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []
        self._stepping: dict[int, list[FrameType | None]] = {}  # the frames of step() that are running, outermost first
        self._count = 0  # watches ever made
        self._loss: torch.Tensor | None = None
        self._ops: list[LossOp] = []
        self._waiting: deque[tuple[OptimizerWatch, int, Row]] = deque()
        self._began = 0.0
        self._spent = self._spent_before = 0.0
        self._backwards = self._since_update = 0
        self._first_norms: torch.Tensor | None = None
        self._described: dict[int, tuple[int, int]] = {}
        self._orders_written: dict[int, int] = {}
        self._objectives_written: dict[int, int] = {}

    # -- the one way in

    def see(self, what: Callable[..., None], *args: Any) -> None:
        """Calls a method of this observer, timed; an error inside ends the observation with one warning."""
        if not self.active or threading.get_ident() != self._thread:
            return
        began = time.perf_counter()
        try:
            what(*args)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            self.detach(error)
        self._spent += time.perf_counter() - began

    def detach(self, error: BaseException) -> None:
        """Stops observing; the training goes on."""
        if not self.active:
            return
        self.active = False
        reason = str(error) if isinstance(error, WhylossError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            reason = f"can't write to {self.folder}: {error.strerror or error}"
        self.failure = reason
        for watch in self.watches.values():
            if watch.sketch is not None:
                watch.sketch.disarm()
        self.on_detach()
        with contextlib.suppress(OSError):
            if self.journal is not None:
                self.journal.event("detached", reason=reason, seconds=self.seconds)
        if os.environ.get("WHYLOSS_DEBUG"):
            traceback.print_exception(error)
        print(f"whyloss: stopped observing ({reason}); the training goes on", file=sys.stderr)  # noqa: T201

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began if self._began else 0.0

    # -- events, in the order in which a step has them

    def optimizer_built(self, optimizer: Optimizer) -> None:
        file, line = user_line()
        place = place_at(file, line)
        first = id(optimizer) not in self._built
        self._built[id(optimizer)] = (weakref.ref(optimizer), place)
        if self.journal is not None and first:
            self.journal.event("built", optimizer=type(optimizer).__name__, place=_plain(place))

    def optimizer_ready(self, optimizer: Optimizer) -> None:
        """After its construction: from the first forward pass on, its model is watched."""
        if not optimizer.param_groups or self._count >= MOST_WATCHES:
            return
        watch = self._watch(optimizer)
        if watch is not None and watch.sketch is not None and watch.observing:
            watch.sketch.arm()

    def backward_begins(self, loss: Any) -> None:
        self._start()
        file, line = user_line()
        for watch in self.watches.values():
            watch.call("backward", file, line)
            watch.backward_begins()
        self._look_at_graph(loss)

    def _look_at_graph(self, loss: Any) -> None:
        self._loss, self._ops = None, []
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            return
        self._loss = self._unscaled(loss).detach().reshape(()).clone()
        early = self._backwards < WALKS or any(w.step < WALKS and w.backwards < WALKS for w in self.watches.values())
        if early:
            for leaf in leaves(loss.grad_fn) or ():
                self._leaves[id(leaf)] = weakref.ref(leaf)
        if early or any(w.observing for w in self.watches.values()):
            self._ops = loss_ops(loss.grad_fn)

    def backward_done(self, loss: Any) -> None:
        self._backwards += 1
        self._since_update += 1
        for watch in self.watches.values():
            watch.backward_done(self._loss, self._ops if watch.observing else [])
        if (self._since_update >= 2 and self._since_update & (self._since_update - 1) == 0) or self._backwards == 1:
            self._write_pending()

    def _unscaled(self, loss: torch.Tensor) -> torch.Tensor:
        for reference, value in self._scaled:
            if reference() is loss:
                return value
        return loss

    def scaled(self, outputs: Any, scaled: Any) -> None:
        if isinstance(outputs, torch.Tensor) and isinstance(scaled, torch.Tensor):
            self._scaled = [*self._scaled[-7:], (weakref.ref(scaled), outputs.detach())]

    def unscaled(self, optimizer: Optimizer) -> None:
        self._record("unscale", self.watches.get(id(optimizer)))

    def zeroed(self, optimizer: Optimizer) -> None:
        watch = self.watches.get(id(optimizer))
        self._record("zero_grad", watch)
        if watch is not None:
            watch.cleared()

    def module_zeroed(self, module: nn.Module) -> None:
        self._record("zero_grad")
        held = {id(p) for p in module.parameters()}
        for watch in self.watches.values():
            if all(id(p) in held for p in watch.parameters()):
                watch.cleared()

    def scheduled(self) -> None:
        self._record("scheduler")

    def clipped(self, limit: Any, norm: Any) -> None:
        self._record("clip_norm")
        value = norm if isinstance(norm, torch.Tensor) else torch.tensor(float(norm))
        for watch in self.watches.values():
            watch.clipped(float(limit), value.detach().reshape(()).double().clone())

    def clipped_by_value(self, limit: Any) -> None:
        self._record("clip_value")
        for watch in self.watches.values():
            watch.clipped_by_value(float(limit))

    def _record(self, what: str, watch: OptimizerWatch | None = None) -> None:
        file, line = user_line()
        for each in [watch] if watch is not None else self.watches.values():
            each.call(what, file, line)

    # -- the update

    def step_begins(self, optimizer: Optimizer, with_closure: bool) -> None:
        """The global pre-hook fires again where a subclass calls super().step(): only the outermost counts."""
        running = self._stepping.setdefault(id(optimizer), [])
        if running and not _on_stack(running[0]):
            running.clear()  # an exception left an earlier step(), and its post-hook never ran
        running.append(_caller())
        if len(running) > 1:
            return
        self._start()
        watch = self._watch(optimizer)
        if watch is None:
            return
        self._prepare(watch)
        watch.before_step(with_closure)

    def step_ends(self, optimizer: Optimizer) -> None:
        running = self._stepping.get(id(optimizer), [])
        if running:
            running.pop()
        if running:
            return
        watch = self.watches.get(id(optimizer))
        if watch is None or watch.update is None:
            return
        self._since_update = 0
        spent = self._spent - self._spent_before
        self._spent_before = self._spent
        rows = watch.after_step(self.seconds, spent)
        self._write_late(watch)
        self._waiting.extend((watch, watch.segment, row) for row in rows)
        self._drain(LAG)
        assert watch.sketch is not None
        if watch.observing:
            watch.sketch.arm()
        else:
            watch.sketch.disarm()
        if self.on_update is not None:
            self._drain(0)
            self.on_update(watch.step)

    def step_skipped(self, optimizer: Optimizer) -> None:
        """A loss scaler found non-finite gradients and left the update out."""
        watch = self.watches.get(id(optimizer))
        self._since_update = 0
        if watch is None:
            return
        watch.skip()
        if self.journal is not None:
            self.journal.event("skipped", trace=watch.index, step=watch.step)

    def metrics(self, values: dict[str, float], step: int | None) -> None:
        self._start()
        assert self.journal is not None
        at = max((w.step for w in self.watches.values()), default=0) if step is None else step
        self.journal.event("metrics", step=at, values=values)

    def finish(self, how: str, error: str = "") -> None:
        """Writes what is still in flight and how the run ended; removes every hook."""
        if not self.active:
            return
        if self.journal is not None:
            self._drain(0)
            if self._since_update:
                self._write_pending()
            for watch in self.watches.values():
                self._write_late(watch, final=True)
            self.journal.event("end", how=how, error=error, seconds=self.seconds, observer_seconds=self._spent)
            self.journal.close()
        for watch in self.watches.values():
            if watch.sketch is not None:
                watch.sketch.disarm()
        self.active = False
        self.on_detach()

    # -- inside

    def _start(self) -> None:
        """The folder is made at the first backward pass, so that loader workers and launchers leave none."""
        if self.journal is not None:
            return
        self._began = time.perf_counter()
        self.journal = Journal(self.folder, self.rank)
        self.folder = self.journal.folder
        self.journal.event(
            "start",
            format=1,
            script=os.path.abspath(sys.argv[0]) if sys.argv and sys.argv[0] else "",
            arguments=list(sys.argv[1:]),
            torch=str(torch.__version__),
            python=platform.python_version(),
            seeds=[torch.initial_seed()],
            pid=os.getpid(),
            every=self.every,
            time=time.time(),
        )
        for reference, place in self._built.values():
            optimizer = reference()
            if optimizer is not None:
                self.journal.event("built", optimizer=type(optimizer).__name__, place=_plain(place))

    def _watch(self, optimizer: Optimizer) -> OptimizerWatch | None:
        watch = self.watches.get(id(optimizer))
        if watch is not None and watch.optimizer is optimizer:
            return watch
        if self._count >= MOST_WATCHES:
            if id(optimizer) in self._ignored:
                return None
            self._ignored.add(id(optimizer))
            if self.journal is not None:
                self.journal.event(
                    "limit", reason=f"more than {MOST_WATCHES} optimizers: {type(optimizer).__name__} not watched"
                )
            return None
        built = self._built.get(id(optimizer))
        watch = OptimizerWatch(self._count, optimizer, built[1] if built else Place(), self.every)
        self._count += 1
        self.watches[id(optimizer)] = watch
        weakref.finalize(optimizer, self._retire, id(optimizer), watch)
        self._lay_out(watch)
        return watch

    def _prepare(self, watch: OptimizerWatch) -> None:
        """Columns and tables for what this update has."""
        known = {id(p) for _, p in watch.tensors}
        unknown = watch.step < WALKS and any(id(t) not in known for t in self._reached(watch))
        if watch.layout_changed or unknown:
            self._lay_out(watch)
            watch.open_segment()
        elif watch.segment_due:
            watch.open_segment()
        if self._described.get(id(watch), (-1, 0))[0] != watch.segment:
            self._write_trace(watch)
            assert self.journal is not None
            for table, columns in watch.columns.items():
                self.journal.table(f"{table}-o{watch.index}-s{watch.segment}", list(columns))

    def _lay_out(self, watch: OptimizerWatch) -> None:
        reached = self._reached(watch)
        wanted = [*watch.parameters(), *reached]
        given = [Root(m, "" if len(self.given) == 1 else f"model{i}") for i, m in enumerate(self.given)]
        covered = {id(p) for root in given for p in root.module.parameters()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = find_roots(wanted) if not {id(t) for t in wanted} <= covered else []
        ours = {id(m) for m in self.given}
        roots = given + [r for r in found if id(r.module) not in ours] if given else found
        watch.lay_out(roots, self._held_by_others(watch), reached, self._key)

    def _reached(self, watch: OptimizerWatch) -> list[torch.Tensor]:
        """Leaves of the loss that no other optimizer holds."""
        others = self._held_by_others(watch)
        alive = [t for t in (reference() for reference in self._leaves.values()) if t is not None]
        return [t for t in alive if id(t) not in others]

    def _held_by_others(self, watch: OptimizerWatch) -> set[int]:
        mine, mine_optimizer = {id(p) for p in watch.parameters()}, watch.optimizer
        optimizers = [reference() for reference, _ in self._built.values()]
        optimizers += [w.optimizer for w in self.watches.values()]
        held = {
            id(p)
            for o in optimizers
            if o is not None and o is not mine_optimizer
            for group in o.param_groups
            for p in group["params"]
        }
        return held - mine

    def _retire(self, key: int, watch: OptimizerWatch) -> None:
        """The optimizer is gone: nothing of its model is held any longer."""
        if self.watches.get(key) is watch:
            del self.watches[key]
        watch.release()

    def _key(self, tensor: torch.Tensor) -> int:
        """A number for the tensor that outlives a reused id()."""
        known = self._key_of.get(id(tensor))
        if known is None or known[0]() is not tensor:
            known = self._key_of[id(tensor)] = (weakref.ref(tensor), len(self._keys))
            self._keys.append(known)
        return known[1]

    def _drain(self, most: int) -> None:
        """Writes the rows whose numbers have arrived, in order; waits only beyond `most` rows."""
        while self._waiting and (len(self._waiting) > most or self._waiting[0][2].ready):
            watch, segment, row = self._waiting.popleft()
            assert self.journal is not None
            self.journal.row(f"{row.table}-o{watch.index}-s{segment}", row.step, row.complete())

    def _write_trace(self, watch: OptimizerWatch) -> None:
        assert self.journal is not None
        watch.mark_reached(self._reached(watch))
        self.journal.event("trace", **_plain(watch.describe()))
        self._described[id(watch)] = (watch.segment, sum(m.order is not None for m in watch.modules()))

    def _write_late(self, watch: OptimizerWatch, final: bool = False) -> None:
        """What became known since: new sequences of events, loss ops, modules that ran, tensors reached."""
        assert self.journal is not None
        sequences = watch.sequences()
        for sequence in sequences[self._orders_written.get(id(watch), 0) :]:
            self.journal.event("order", trace=watch.index, sequence=[_plain(c) for c in sequence])
        self._orders_written[id(watch)] = len(sequences)
        for objective in watch.objectives[self._objectives_written.get(id(watch), 0) :]:
            self.journal.event("objective", trace=watch.index, objective=_plain(objective))
        self._objectives_written[id(watch)] = len(watch.objectives)
        ran = sum(m.order is not None for m in watch.modules())
        if watch.segment >= 0 and (self._described.get(id(watch)) != (watch.segment, ran) or watch.step == WALKS):
            self._write_trace(watch)

    @torch.no_grad()
    def _write_pending(self) -> None:
        """Backward calls without an update: are the weights at least changed by somebody else?"""
        weights = [t for t in (reference() for reference in self._leaves.values()) if t is not None]
        if not weights or self.journal is None:
            return
        now = torch.stack([n.double() for n in norms([w.detach() for w in weights if w.is_floating_point()])])
        if self._first_norms is None or self._first_norms.shape != now.shape:
            self._first_norms = now
        if self.watches and any(w.step for w in self.watches.values()):
            return
        changed = not torch.equal(self._first_norms, now)
        loss = float(self._loss) if self._loss is not None else float("nan")
        file, line = user_line()
        place = _plain(place_at(file, line))
        self.journal.event("pending", backwards=self._since_update, loss=loss, weights_changed=changed, place=place)


def _caller() -> FrameType | None:
    """The frame outside whyloss that we are called from: torch's wrapper around step()."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_OBSERVE):
        frame = frame.f_back
    return frame


def _on_stack(wanted: FrameType | None) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame is wanted:
            return True
        frame = frame.f_back
    return False


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)
