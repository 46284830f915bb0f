"""Takes what the patches see, keeps one watch an optimizer, and writes the journal. Never raises into the training."""

import contextlib
import gc
import os
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from whyloss.core.errors import WhylossError
from whyloss.core.finding import Place
from whyloss.core.lines import place_at, user_line
from whyloss.observe.copies import Copies
from whyloss.observe.feed import Feed
from whyloss.observe.graph import loss_ops, nodes
from whyloss.observe.kept import KeptGraphs
from whyloss.observe.leaves import Leaves, Marks, deposited, marks
from whyloss.observe.models import Root, find_roots
from whyloss.observe.optimizer import FIRST, WALKS, OptimizerWatch
from whyloss.observe.record import Record, plain
from whyloss.observe.tapes import TapeOptions, Tapes
from whyloss.tape.replay import playing

MOST_WATCHES = 16
MOST_SEGMENTS = 64  # tables of one optimizer; each is two open files
_STEP = Optimizer.profile_hook_step(lambda self: None).__code__  # of torch's wrapper around every step()


class Backward:
    """A backward call that is running."""

    def __init__(self, loss: Any, file: str | None, line: int | None) -> None:
        self.file, self.line = file, line
        self.tensors = list(loss) if isinstance(loss, tuple | list) else [loss]
        self.loss: torch.Tensor | None = None
        self.value: torch.Tensor | None = None
        self.count: torch.Tensor | None = None
        self.scale: torch.Tensor | None = None
        self.objectives: list[Any] = []
        self.before: dict[int, Marks] = {}
        self.credited: list[OptimizerWatch] = []


class Observer:
    """One process's observation. `every`: full observation each so many updates, after the first 20."""

    def __init__(
        self,
        folder: Path,
        *,
        every: int = 10,
        rank: int = 0,
        models: tuple[nn.Module, ...] = (),
        tapes: TapeOptions = TapeOptions(),
    ) -> None:
        self.folder, self.every, self.rank, self.given = folder, every, rank, models
        self.record: Record | None = None
        self.watches: dict[int, OptimizerWatch] = {}
        self.feed = Feed(self.see, lambda: self.record, self._updates, lambda module: self.tapes.path_of(module))
        self.tapes = Tapes(self.see, self._start, self.watches, tapes, self.feed)
        self.copies = Copies(self.see)
        self.active = True
        self.failure: str | None = None
        self.on_detach: Callable[[], None] = lambda: None
        self.on_update: Callable[[int], None] | None = None
        self._thread, self._pid = threading.get_ident(), os.getpid()
        self._built: dict[int, tuple[weakref.ref[Optimizer], Place]] = {}
        self._ignored: set[int] = set()
        self._compiled: dict[int, weakref.ref[nn.Module]] = {}
        self._key_of: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._keys = self._count = 0  # tensors ever named, watches ever made
        self._leaves = Leaves()
        self._kept = KeptGraphs()
        self._scaled: list[tuple[weakref.ref[torch.Tensor], torch.Tensor, torch.Tensor | None]] = []
        self._running: Backward | None = None
        self._loss: torch.Tensor | None = None
        self._began = 0.0
        self._spent = self._spent_before = 0.0
        self._backwards = self._since_update = 0

    # -- the one way in

    def see(self, what: Callable[..., None], *args: Any) -> None:
        """Calls a method of this observer, timed; an error inside ends the observation with one warning."""
        if not self.active or playing() or threading.get_ident() != self._thread or os.getpid() != self._pid:
            return
        began = time.perf_counter()
        try:
            if not _capturing():
                self._unheard(what, *args)
        except Exception as error:  # noqa: BLE001 - nothing of ours may reach the training
            self.detach(error)
        self._spent += time.perf_counter() - began

    def _unheard(self, what: Callable[..., None], *args: Any) -> None:
        """What we compute ourselves is not recorded."""
        recorder = self.tapes.listening
        if recorder is None:
            what(*args)
            return
        recorder.deaf += 1
        try:
            what(*args)
        finally:
            recorder.deaf -= 1

    def detach(self, error: BaseException) -> None:
        """Stops observing; the training goes on."""
        if not self.active:
            return
        self.active = False
        reason = str(error) if isinstance(error, WhylossError) else f"{type(error).__name__}: {error}"
        if isinstance(error, OSError):
            reason = f"can't write to {self.folder}: {error.strerror or error}"
        self.failure = reason
        for last in (self._let_go, lambda: self._note_detached(reason)):
            with contextlib.suppress(Exception):
                last()
        with contextlib.suppress(Exception):
            if os.environ.get("WHYLOSS_DEBUG"):
                traceback.print_exception(error)
            print(f"whyloss: stopped observing ({reason}); the training goes on", file=sys.stderr)  # noqa: T201

    def _let_go(self) -> None:
        """Removes every hook and every reference to what belongs to the training."""
        try:
            self.feed.release()
            self.copies.release()
            self.tapes.release()
            for watch in list(self.watches.values()):
                watch.release()
        finally:
            self.watches.clear()
            self.given, self._running, self._loss = (), None, None
            self._scaled, self._leaves = [], Leaves()
            self.on_detach()

    def _note_detached(self, reason: str) -> None:
        if self.record is not None:
            self.record.journal.event("detached", reason=reason, seconds=self.seconds)
            self.record.journal.close()

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self._began if self._began else 0.0

    # -- events, in the order in which a step has them

    def optimizer_built(self, optimizer: Optimizer) -> None:
        file, line = user_line()
        place = place_at(file, line)
        known = self._built.get(id(optimizer))
        if known is None or known[0]() is not optimizer:
            self._built = {i: b for i, b in self._built.items() if b[0]() is not None}
            if self.record is not None:
                self.record.built(optimizer, place)
        self._built[id(optimizer)] = (weakref.ref(optimizer), place)

    def optimizer_ready(self, optimizer: Optimizer) -> None:
        """After its construction: from the first forward pass on, its model is watched."""
        watch = self._watch(optimizer)
        if watch is not None and watch.sketch is not None and watch.observing:
            watch.sketch.arm()

    def compiled(self, module: nn.Module | None) -> None:
        """From now on it runs where no hook may be. None where a function was compiled."""
        self.feed.evaluations.compiles()
        if module is None:
            return
        self._compiled[id(module)] = weakref.ref(module)
        for watch in list(self.watches.values()):
            if any(m is module for root in watch.roots for m in root.module.modules()):
                watch.watch_modules(self.see, self._is_compiled, anew=True)
                self.tapes.watch(watch, self._is_compiled)
                if watch.sketch is not None and watch.observing:
                    watch.sketch.arm()

    def backward_begins(self, loss: Any, options: Mapping[str, Any]) -> None:
        self._start()
        self.feed.backward_begins()
        if not self.watches:
            self._find_optimizers()
        running = self._running = Backward(loss, *user_line())
        watches = self._settled()
        for watch in watches:
            watch.backward_begins()
        if len(watches) > 1:
            running.before = {id(w): marks(w.parameters()) for w in watches}
        self._look_at_loss(running)
        self._look_at_graph(running, watches)
        if self._kept.note(running.tensors):
            self._start().journal.event("kept", **plain(self._kept.count(running.tensors, self._updates())))
        running.tensors = []
        self.tapes.backward_begins(loss, options)

    def _settled(self) -> list[OptimizerWatch]:
        """All watches, after those were put right whose step() an exception left."""
        watches = list(self.watches.values())
        for watch in watches:
            if watch.update is not None and not _depth(watch.optimizer):
                watch.abandon()
        return watches

    def _look_at_loss(self, running: Backward) -> None:
        """The value of what backward() is called of: the sum where it is several scalars."""
        tensors = running.tensors
        if tensors and all(isinstance(t, torch.Tensor) and t.numel() == 1 for t in tensors):
            found = [self._unscaled(t) for t in tensors]
            running.scale = found[0][1]
            values = [t.detach().clone() for t, _ in found]
            running.loss = (
                values[0] if len(values) == 1 else torch.stack([v.reshape(()) for v in values]).sum()
            ).reshape(())
        self._loss = running.loss

    def _look_at_graph(self, running: Backward, watches: list[OptimizerWatch]) -> None:
        early = self._backwards < WALKS or any(w.walks and w.backwards < WALKS for w in watches)
        observing = [w for w in watches if w.observing]
        if not early and not observing:
            return
        begin = nodes(running.tensors)
        if early:
            self._leaves.walk(begin)
        ops = loss_ops(begin) if observing or early else []
        running.objectives = [op.objective for op in ops]
        with torch.no_grad():
            running.value = ops[0].value() if len(ops) == 1 else None
            running.count = ops[0].count() if len(ops) == 1 and observing else None
        for watch in observing:
            watch.targets.add(ops)  # now: backward frees what they hold, and so must we

    def backward_done(self, loss: Any) -> None:
        running, self._running = self._running, None
        if running is None:
            return
        self._backwards += 1
        self._since_update += 1
        watches = [w for w in self.watches.values() if w not in running.credited]
        reached = [w for w in watches if deposited(w.parameters(), running.before.get(id(w), []))]
        for watch in reached if running.before and (reached or running.credited) else watches:
            self._credit(watch, running)
        self.tapes.backward_done()
        self.feed.backward_done()
        if (self._since_update >= 2 and self._since_update & (self._since_update - 1) == 0) or self._backwards == 1:
            self._pending()

    def _pending(self) -> None:
        """Only while nothing was updated."""
        if not any(w.step for w in self.watches.values()):
            self._start().pending(self._since_update, self._loss, self._leaves)

    def _credit(self, watch: OptimizerWatch, running: Backward) -> None:
        """The update of this optimizer will be made with the gradients of this backward call."""
        running.credited.append(watch)
        self.tapes.credited(watch)
        if not watch.evaluated:
            watch.calls.add("backward", running.file, running.line)
        if running.scale is not None:
            watch.scale = running.scale
        value, count = (running.value, running.count) if watch.observing else (None, None)
        watch.backward_done(running.loss, value, running.objectives, count)

    def _unscaled(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The loss as it was before a loss scaler multiplied it, and with what."""
        for reference, value, scale in self._scaled:
            if reference() is loss:
                return value, scale
        return loss, None

    def scaled(self, outputs: Any, scaled: Any, scale: torch.Tensor | None) -> None:
        several = isinstance(outputs, tuple | list)
        for o, s in zip(outputs, scaled, strict=False) if several else [(outputs, scaled)]:
            if isinstance(o, torch.Tensor) and isinstance(s, torch.Tensor) and o.numel() == 1:
                self._scaled = [*self._scaled[-7:], (weakref.ref(s), o.detach(), scale)]

    def unscaled(self, optimizer: Optimizer, scale: torch.Tensor | None) -> None:
        self.tapes.touched()
        watch = self._watch(optimizer)
        self._record("unscale", [watch])
        if watch is not None:
            watch.scale = scale

    def zeroed(self, optimizer: Optimizer) -> None:
        self._settled()
        watch = self._watch(optimizer)
        self._record("zero_grad", [watch])
        if watch is not None:
            self._cleared(watch)

    def module_zeroed(self, module: nn.Module) -> None:
        held = {id(p) for p in module.parameters()}
        for watch in self._settled():
            mine = {id(p) for p in watch.parameters()}
            if mine & held:
                self._record("zero_grad", [watch])
            if mine <= held:
                self._cleared(watch)

    def _cleared(self, watch: OptimizerWatch) -> None:
        watch.cleared()
        if watch.update is None:
            self.tapes.cleared(watch)

    def scheduled(self, scheduler: Any) -> None:
        if getattr(scheduler, "_step_count", 2) > 1:  # the first one is its constructor's
            self._record("scheduler", [self.watches.get(id(getattr(scheduler, "optimizer", None)))])

    def clipped(self, parameters: Any, limit: Any, norm: Any) -> None:
        value = norm if isinstance(norm, torch.Tensor) else torch.tensor(float(norm), device="cpu")
        there = None if hasattr(value, "_local_tensor") else value.detach().reshape(()).double().clone()
        over = _listed(parameters)
        self.tapes.touched()
        self._record("clip_norm", [w for w in self._settled() if w.clipped(over, float(limit), there)])

    def clipped_by_value(self, parameters: Any, limit: Any) -> None:
        over = _listed(parameters) or []
        self.tapes.touched()
        self._record("clip_value", [w for w in self._settled() if w.clipped_by_value(over, float(limit))])

    def _record(self, what: str, watches: Iterable[OptimizerWatch | None]) -> None:
        file, line = user_line()
        for watch in watches:
            if watch is not None and not watch.evaluated:
                watch.calls.add(what, file, line)

    # -- the update

    def step_begins(self, optimizer: Optimizer, with_closure: bool) -> None:
        """The global hooks fire again where a subclass calls super().step(): only the outermost counts."""
        if _depth(optimizer) > 1:
            return
        self.tapes.update_begins()
        record = self._start()
        watch = self._watch(optimizer)
        if watch is None:
            return
        if self._running is not None and _in_backward() and watch not in self._running.credited:
            self._credit(watch, self._running)  # an optimizer that steps as soon as its gradient is there
        watch.step_called()
        self._prepare(watch, record)
        watch.before_step(with_closure)
        if not with_closure:
            self.tapes.before_update(watch)

    def step_ends(self, optimizer: Optimizer) -> None:
        watch = self.watches.get(id(optimizer))
        if _depth(optimizer) > 1 or watch is None or watch.update is None:
            return
        self._since_update = 0
        spent = self._spent - self._spent_before
        self._spent_before = self._spent
        rows = watch.after_step(self.seconds, spent)
        self.tapes.updated(watch)
        self.feed.evaluations.updated()
        self.copies.look(watch, self._optimized)
        record = self._start()
        record.late(watch, self._leaves)
        record.rows(watch, rows)
        for loss, gradient in watch.figures():
            self.tapes.look(watch, loss, gradient)
        if watch.step == FIRST:
            for other in self._settled():
                record.idle(other, self._leaves)
        assert watch.sketch is not None
        if watch.observing:
            watch.sketch.arm()
        else:
            watch.sketch.disarm()
        if self.on_update is not None:
            record.drain()
            self.on_update(watch.step)

    def step_skipped(self, optimizer: Optimizer, scale: torch.Tensor | None) -> None:
        """A loss scaler found non-finite gradients and left the update out."""
        watch = self._watch(optimizer)
        self._since_update = 0
        if watch is not None:
            self.tapes.skipped(watch)
            watch.skip()
            factor = None if scale is None else float(scale)  # the scaler itself has just waited for the device
            self._start().journal.event("skipped", trace=watch.index, step=watch.step, scale=factor)

    def _updates(self) -> int:
        """The updates of the optimizer that has made most."""
        return max((w.step for w in self.watches.values()), default=0)

    def steps(self, optimizer: Any) -> int:
        """The updates of an optimizer so far."""
        watch = self.watches.get(id(optimizer))
        return watch.step if watch is not None else 0

    def metrics(self, values: dict[str, float], step: int | None) -> None:
        at = self._updates() if step is None else step
        self._start().journal.event("metrics", step=at, values=values)

    def finish(self, how: str, error: str = "") -> None:
        """Writes what is still in flight and how the run ended; removes every hook."""
        if not self.active:
            return
        record = self.record
        if record is not None:
            self.tapes.finish()
            self.feed.finish()
            for copy in self.copies.facts(self._updates()):
                record.journal.event("copy", **plain(copy))
            record.drain()
            if self._since_update:
                self._pending()
            for watch in list(self.watches.values()):
                record.late(watch, self._leaves)
            spent = self._spent
            record.journal.event("end", how=how, error=error, seconds=self.seconds, observer_seconds=spent)
            record.journal.close()
        self.active = False
        self._let_go()

    # -- inside

    def _start(self) -> Record:
        """The folder is made at the first backward pass, so that loader workers and launchers leave none."""
        if self.record is not None:
            return self.record
        self._began, self._spent = time.perf_counter(), 0.0
        self.record = Record(self.folder, self.rank, self.every)
        self.folder = self.record.folder
        for reference, place in list(self._built.values()):
            optimizer = reference()
            if optimizer is not None:
                self.record.built(optimizer, place)
        return self.record

    def _find_optimizers(self) -> None:
        """Those that were built before the observation began."""
        if self._backwards == 0:
            for thing in gc.get_objects():
                if issubclass(type(thing), Optimizer) and getattr(thing, "param_groups", None):
                    self._watch(thing)

    def _watch(self, optimizer: Optimizer) -> OptimizerWatch | None:
        watch = self.watches.get(id(optimizer))
        if watch is not None and watch.optimizer is optimizer:
            return watch
        if not getattr(optimizer, "param_groups", None):
            return None
        if self._count >= MOST_WATCHES:
            self._ignore(optimizer)
            return None
        built = self._built.get(id(optimizer))
        known = built is not None and built[0]() is optimizer
        watch = OptimizerWatch(self._count, optimizer, built[1] if built and known else Place(), self.every)
        self._count += 1
        self.watches[id(optimizer)] = watch
        weakref.finalize(optimizer, _retired, self, id(optimizer), watch).atexit = False
        self._lay_out(watch)
        return watch

    def _ignore(self, optimizer: Optimizer) -> None:
        if id(optimizer) not in self._ignored and self.record is not None:
            self._ignored.add(id(optimizer))
            self._limit(f"more than {MOST_WATCHES} optimizers: {type(optimizer).__name__} not watched")

    def _limit(self, reason: str) -> None:
        self._start().journal.event("limit", reason=reason)

    def _prepare(self, watch: OptimizerWatch, record: Record) -> None:
        """Columns and tables for what this update has."""
        if watch.settled and not watch.observing:
            return
        stale = watch.layout_stale(self._held_by_others(watch), self._reached(watch) if watch.walks else [])
        if watch.segment >= MOST_SEGMENTS or not (stale or watch.segment_due):
            return
        if stale:
            self._lay_out(watch)
        watch.open_segment()
        record.segment(watch, self._leaves)
        if watch.segment == MOST_SEGMENTS:
            self._limit(f"the tensors of {watch.kind} changed {MOST_SEGMENTS} times: later changes are not followed")

    def _lay_out(self, watch: OptimizerWatch) -> None:
        reached = self._reached(watch)
        wanted = [*watch.parameters(), *reached]
        roots = watch.roots if watch.covered(wanted) else self._roots(wanted)
        watch.lay_out(roots, self._held_by_others(watch), reached, self._key)
        watch.watch_modules(self.see, self._is_compiled)
        self.tapes.watch(watch, self._is_compiled)

    def _is_compiled(self, module: nn.Module) -> bool:
        known = self._compiled.get(id(module))
        inside = type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None
        return inside or (known is not None and known() is module)

    def _roots(self, wanted: list[torch.Tensor]) -> list[Root]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return find_roots(wanted, self.given)

    def _reached(self, watch: OptimizerWatch) -> list[torch.Tensor]:
        """Leaves of the loss that no other optimizer holds."""
        others = self._held_by_others(watch)
        return [t for t in self._leaves.alive() if id(t) not in others]

    def _held_by_others(self, watch: OptimizerWatch) -> set[int]:
        mine = {id(p) for p in watch.parameters()}
        return {id(p) for p in self._optimized(besides=watch.optimizer)} - mine

    def _optimized(self, besides: Optimizer | None = None) -> list[torch.Tensor]:
        """What the optimizers hold."""
        optimizers = [reference() for reference, _ in list(self._built.values())]
        optimizers += [w.optimizer for w in list(self.watches.values())]
        groups = [g for o in optimizers if o is not None and o is not besides for g in o.param_groups]
        return [p for group in groups for p in group["params"]]

    def retire(self, key: int, watch: OptimizerWatch) -> None:
        """The optimizer is gone: nothing of its model is held any longer."""
        if self.watches.get(key) is watch:
            del self.watches[key]
        watch.release()
        self.tapes.forget(watch)

    def _key(self, tensor: torch.Tensor) -> int:
        """A number for the tensor that outlives a reused id()."""
        known = self._key_of.get(id(tensor))
        if known is None or known[0]() is not tensor:
            known = self._key_of[id(tensor)] = (weakref.ref(tensor), self._keys)
            self._keys += 1
        return known[1]


def _retired(observer: Observer, key: int, watch: OptimizerWatch) -> None:
    """Runs whenever the garbage collector does, in whatever thread."""
    with contextlib.suppress(Exception):
        observer.retire(key, watch)


def _depth(optimizer: Optimizer | None) -> int:
    """How many step() of this optimizer are running: more than one where a subclass calls super().step()."""
    count, frame = 0, sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP and frame.f_locals.get("self") is optimizer:
            count += 1
        frame = frame.f_back  # type: ignore[assignment]
    return count


def _capturing() -> bool:
    """What a CUDA graph captures would run again with every replay."""
    ready = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return bool(ready and torch.cuda.is_current_stream_capturing())


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _listed(parameters: Any) -> list[torch.Tensor] | None:
    """None for what can be gone through only once."""
    if isinstance(parameters, torch.Tensor):
        return [parameters]
    return list(parameters) if isinstance(parameters, list | tuple | set | dict) else None
