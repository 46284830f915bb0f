"""Which steps are recorded, and when; the few tapes that are kept; and the step that first turns non-finite."""

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from whyloss.core.errors import WhylossError
from whyloss.core.lines import user_line
from whyloss.core.location import Location, Phase
from whyloss.core.suspicion import Suspicion
from whyloss.observe.activations import Guard
from whyloss.observe.entries import Entries
from whyloss.observe.feed import Feed
from whyloss.observe.models import compiled_wrappers
from whyloss.observe.nonfinite import at_update, by_side, nodes_of
from whyloss.observe.optimizer import OptimizerWatch
from whyloss.observe.probing import Probing
from whyloss.observe.record import Record, plain
from whyloss.observe.rows import norms
from whyloss.observe.tensors import gradients
from whyloss.tape.bundle import write_bundle
from whyloss.tape.capture import Capture
from whyloss.tape.graph import step_graph
from whyloss.tape.locate import locate
from whyloss.tape.numbers import Named, tensors
from whyloss.tape.prove import prove
from whyloss.tape.record import Recorder
from whyloss.tape.recording import gradients_of
from whyloss.tape.replay import playing
from whyloss.tape.setup import setup_of
from whyloss.tape.tape import Ref, Role, Tape

RECORDED_FIRST = (0, 1, 2)
RECORDED = frozenset((*RECORDED_FIRST, 30))  # updates of an optimizer that are recorded without being asked for
MOST_BYTES = 512 * 2**20  # of all tapes that are kept
MOST_PASSES = 64  # backward passes of one update
MOST_FORWARDS = 1024  # forward passes before one backward pass
PATIENCE = 8  # updates of other optimizers for which a recording stays open


@dataclass(frozen=True)
class TapeOptions:
    """`most_bytes`: of memory for tapes. `bundles`: updates whose tape goes to disk; `redact`: without the data."""

    most_bytes: int = MOST_BYTES
    bundles: frozenset[int] = frozenset()
    redact: bool = False


@dataclass
class _Passes:
    """The backward passes since an optimizer's last update: their places in the log, losses, gradients before them."""

    before: Mapping[int, torch.Tensor]
    places: list[int] = field(default_factory=list)
    losses: list[torch.Tensor] = field(default_factory=list)
    blind: bool = False  # there were gradients of which nothing is known


@dataclass
class _Running:
    """A backward pass that is running: its place in the log, what it began from, and the gradients before it."""

    place: int | None
    losses: list[torch.Tensor]
    before: Mapping[int, torch.Tensor]
    blind: bool = False


@dataclass
class _Known:
    """The model behind an optimizer: its tensors under their names, its modules under their paths."""

    names: dict[int, tuple[torch.Tensor, Role, str]]
    paths: dict[int, str] = field(default_factory=dict)
    roots: dict[int, nn.Module] = field(default_factory=dict)  # of each module
    modules: list[nn.Module] = field(default_factory=list)


class Tapes:
    """Records steps for the watches of an observer. Everything here is called within the observer's guard."""

    def __init__(
        self,
        guard: Guard,
        record: Callable[[], Record],
        watches: Mapping[int, OptimizerWatch],
        options: TapeOptions,
        feed: Feed,
    ) -> None:
        self.kept: list[Tape] = []
        self._record, self._watches, self._options = record, watches, options
        self._entries = Entries(guard, self._call_begins, self._call_ends, feed)
        self._suspicion = Suspicion()
        self._recorder: Recorder | None = None
        self._capture: Capture | None = None
        self._known: dict[int, _Known] = {}
        self._names: Named = {}
        self._paths: dict[int, str] = {}
        self._passes: dict[int, _Passes] = {}
        self._gradients: dict[int, int | None] = {}
        self._running: _Running | None = None
        self._waited: dict[tuple[int, int], int] = {}  # (trace, step) → updates of others while it was to be recorded
        self._unseen: list[weakref.ref[nn.Module]] = []  # compiled modules whose compiled call is not known yet
        self._touched = False
        self._nodes: list[str] = []  # of autograd, with which the last backward pass began
        self._asked = 0  # steps that are still to be recorded
        self._forwards = 0  # forward passes since the last backward pass
        self._last: int | None = None  # id of the module that was last called
        self._refused = ""  # why no step is recorded any longer
        self._limits: set[str] = set()  # told
        self._located = False
        self._probing = Probing(record)
        self._given = 0  # tensors that the last outermost module was called with
        self._seconds = 0.0  # of this thread, that the last proof took

    # -- what the observer tells

    def watch(self, watch: OptimizerWatch, compiled: Callable[[nn.Module], bool]) -> None:
        """The model of an optimizer is known, or known anew."""
        known = self._known[watch.index] = _Known(
            {id(t): (t, Role.PARAMETER, tensor.name) for tensor, t in watch.tensors}
        )
        for root in watch.roots:
            closed: tuple[str, ...] = ()
            for path, module in root.module.named_modules():
                known.paths[id(module)] = root.path(path)
                known.roots[id(module)] = root.module
                known.modules.append(module)
                if compiled(module):
                    closed = (*closed, path)
                    self._watch_compiled(module)
                if any(path == c or path.startswith(f"{c}." if c else "") for c in closed):
                    self._entries.forget([module])
                else:
                    self._entries.watch([module])
            for name, buffer in root.module.named_buffers():
                known.names.setdefault(id(buffer), (buffer, Role.BUFFER, root.path(name)))
        self._merge()

    def forget(self, watch: OptimizerWatch) -> None:
        """Its optimizer is gone: nothing of its model is held any longer."""
        known = self._known.pop(watch.index, None)
        if known is not None:
            self._close()
            self._merge()
            shared = {id(m) for other in self._known.values() for m in other.modules}
            self._entries.forget(m for m in known.modules if id(m) not in shared)

    def _merge(self) -> None:
        self._let_go()
        self._names = {key: entry for known in self._known.values() for key, entry in known.names.items()}
        self._paths = {key: path for known in self._known.values() for key, path in known.paths.items()}

    def _watch_compiled(self, module: nn.Module) -> None:
        if getattr(module, "_compiled_call_impl", None) is not None:
            self._entries.watch_compiled(module, "_compiled_call_impl", self._compiled_call)
        wrappers = compiled_wrappers(module)
        for wrapper in wrappers:
            self._entries.watch_compiled(wrapper, "forward", self._compiled_call)
        if getattr(module, "_compiled_call_impl", None) is None and not wrappers:
            self._unseen.append(weakref.ref(module))  # torch.compile has been called, and has not returned to it

    def _compiled_call(self, run: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self._recorder is not None and not playing():
            return self._recorder.compiled_call(run, module, args, kwargs)
        return run(*args, **kwargs)

    def path_of(self, module: nn.Module) -> str:
        """In its model; "" where it is the model, or not known."""
        return self._paths.get(id(module), "")

    def record_next(self) -> None:
        """The next step that begins is recorded."""
        self._asked += 1

    def look(self, watch: OptimizerWatch, loss: float, gradient: float) -> None:
        """The figures of an update: where they are suspicious, the next step is recorded."""
        self._probing.look(watch.index, loss)
        if self._suspicion.look(watch.index, loss, gradient):
            self._asked += 1

    @property
    def listening(self) -> Recorder | None:
        """What logs calls now, and must not log those of the observer."""
        if self._recorder is not None or self._capture is None:
            return self._recorder
        return self._capture.log

    def backward_begins(self, given: Any, options: Mapping[str, Any]) -> None:
        if any(w.evaluated for w in self._watches.values()):
            return  # a closure's first evaluation is the step
        self._running, self._nodes, self._forwards = None, nodes_of(given), 0
        if self._recorder is not None:
            place = self._recorder.backward_begins(given, options)
            first = any(w.index not in self._passes for w in self._watches.values())
            before = self._recorder.keep_gradients() if first else {}
            self._running = _Running(place, [t.detach().clone() for t in tensors(given)], before)
        elif self._capture is not None:
            place = self._capture.backward_begins(given, options)
            blind = any(t.grad is not None for t, _, _ in self._names.values())
            self._running = _Running(place, [t.detach().clone() for t in tensors(given)], {}, blind)

    def credited(self, watch: OptimizerWatch) -> None:
        """The running backward pass belongs to this optimizer's coming update."""
        running = self._running
        if running is not None and running.place is not None:
            passes = self._passes.setdefault(watch.index, _Passes(running.before, blind=running.blind))
            passes.places.append(running.place)
            passes.losses += running.losses

    def backward_done(self) -> None:
        self._entries.pass_ends()
        unseen, self._unseen = self._unseen, []
        for module in filter(None, (reference() for reference in unseen)):
            self._watch_compiled(module)
        recorder, running, self._running = self._recorder, self._running, None
        if recorder is not None and running is not None:
            self._gradients = gradients_of(recorder)
        for watch in list(self._watches.values()) if running is not None else ():
            if watch.update is not None:  # within step(), whose closure made this pass
                self._judge(watch, self._spoilt)
        most = max((len(p.places) for p in self._passes.values()), default=0)
        if self._recorder is not None and (self._recorder.broken or most > MOST_PASSES):
            self._refuse(self._recorder.broken or f"it has more than {MOST_PASSES} backward passes")
        elif most > MOST_PASSES:
            self._bound()

    def _bound(self) -> None:
        """Backward passes without an update are not held for ever."""
        for passes in self._passes.values():
            del passes.places[:-MOST_PASSES], passes.losses[:-MOST_PASSES]

    def cleared(self, watch: OptimizerWatch) -> None:
        """Its gradients were cleared: backward passes so far count for nothing."""
        self._passes.pop(watch.index, None)

    def touched(self) -> None:
        """Gradients were clipped or unscaled: they are no longer what backward left."""
        self._touched = True

    def update_begins(self) -> None:
        """What an optimizer computes is not recorded."""
        if self._recorder is not None:
            self._recorder.leave()
        if self._capture is not None:
            self._capture.pause()

    def before_update(self, watch: OptimizerWatch) -> None:
        """The gradients of the update are there, the parameters still those that they were computed from."""
        self._judge(watch, OptimizerWatch.nonfinite)

    def skipped(self, watch: OptimizerWatch) -> None:
        """A loss scaler leaves the update out. That is no alarm, unless the loss itself is not finite."""
        if not watch.loss_finite:
            self._judge(watch, lambda _: True)
        self.cleared(watch)
        self.updated(watch)

    def _judge(self, watch: OptimizerWatch, nonfinite: Callable[[OptimizerWatch], bool]) -> None:
        """Keeps the tape of a coming update if its step was chosen; the first non-finite one is located."""
        alarm = self._options.most_bytes > 0 and not self._located and nonfinite(watch)
        chosen = self._wants(watch)
        tape = self._proved(watch) if self._recorder is not None and (chosen or alarm) else None
        if tape is not None and chosen:
            self._note(watch, tape)
        if alarm:
            self._tell(watch, tape)
        self._passes.pop(watch.index, None)

    def _spoilt(self, watch: OptimizerWatch) -> bool:
        """Whether a loss or a gradient that there is now is not finite."""
        return not (watch.loss_finite and bool(norms(gradients(watch.parameters())).isfinite().all()))

    def updated(self, watch: OptimizerWatch) -> None:
        self._touched, self._nodes = False, []
        if self._recorder is None:
            if self._capture is not None:
                self._capture.updated()
            self._record_functions()
            return
        self._recorder.leave()
        self._recorder.updated()
        for other in self._watches.values():
            if other is not watch and self._wants(other):
                self._waited[other.index, other.step] = self._waited.get((other.index, other.step), 0) + 1
        if not any(self._wants(w) for w in self._watches.values()):
            self._close()
        self._record_functions()
        self._probing.updated()

    def _record_functions(self) -> None:
        """Where no module is ever called, a step begins as soon as the one before it has ended."""
        if self._last is None and any(self._wants(w) for w in self._watches.values()):
            self._recorder = self._recorder or Recorder(self._names, self._paths, most_bytes=self._options.most_bytes)
            self._recorder.start()
            self._recorder.enter()

    def finish(self) -> None:
        """The training ends. If it ends before an update that would not be finite, that is located still."""
        self._probing.finish(self.kept)
        for watch in list(self._watches.values()):
            if watch.index in self._passes and not self._located and self._spoilt(watch):
                self._judge(watch, lambda _: True)
        log = self.listening
        if self._located or log is None or log.numbers.scalar is None:
            return
        number, value = log.numbers.scalar
        owner = next((w for w in self._watches.values() if self._last in self._known[w.index].paths), None)
        place = self._backward_missing(number) if owner is not None and not value.isfinite().all() else None
        if owner is not None and place is not None:
            self._gradients = {}  # there are none
            self._passes[owner.index] = _Passes({}, [place], [value], blind=True)
            self._judge(owner, lambda _: True)

    def _backward_missing(self, number: int) -> int | None:
        """The program looked at its loss and stopped: the place of what it would have gone on with."""
        if self._recorder is None:
            return self._capture.backward_missing(number) if self._capture is not None else None
        self._recorder.leave()
        return self._recorder.log_backward((Ref(number),), {})

    def release(self) -> list[nn.Module]:
        """Lets go of everything that belongs to the training; the modules that had a hook."""
        self._close()
        self._known, self.kept, self._probing = {}, [], Probing(self._record)
        self._merge()
        return self._entries.release()

    # -- the forward passes of outermost modules

    def _call_begins(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if any(w.evaluated for w in self._watches.values()) or self._evaluating(module):
            return
        self._last, self._forwards = id(module), self._forwards + 1
        if self._recorder is None and any(self._wants(w) and not w.backwards for w in self._watches.values()):
            self._let_go()
            self._recorder = Recorder(self._names, self._paths, most_bytes=self._options.most_bytes)
            self._forwards = 1
        if self._forwards > MOST_FORWARDS:
            self._give_up()
        if self._recorder is not None:
            self._given = sum(t.ndim > 0 for t in tensors((args, kwargs)))
            self._recorder.start()
            self._recorder.enter()
        elif not self._located and self._options.most_bytes:
            if self._capture is None:
                self._capture = Capture(self._names, self._paths)
            self._capture.call_begins(module, args, kwargs, *user_line())

    def _call_ends(self, module: nn.Module, output: Any) -> None:
        if self._capture is not None:
            self._capture.call_ends(output)

    def _evaluating(self, module: nn.Module) -> bool:
        """A forward pass in eval mode, with gradients on by oversight, of a model that is trained in train mode."""
        root = next((k.roots[id(module)] for k in self._known.values() if id(module) in k.roots), module)
        return not (module.training or root.training) and any(w.trains for w in self._watches.values())

    # -- recordings

    def _wants(self, watch: OptimizerWatch) -> bool:
        if not self._options.most_bytes or self._refused or watch.optimizer is None:
            return False
        chosen = watch.step in RECORDED or watch.step in self._options.bundles or self._asked > 0
        waited = self._waited.get((watch.index, watch.step), 0)
        return chosen and waited < PATIENCE

    def _proved(self, watch: OptimizerWatch) -> Tape | None:
        """The tape of an optimizer's coming update; None, and no further recordings, where there can be none."""
        passes, recorder = self._passes.get(watch.index), self._recorder
        if passes is None or recorder is None or watch.optimizer is None:
            return None
        recorder.leave()
        state = _bytes(watch.optimizer.state.values()) < self._options.most_bytes / 4
        try:
            tape = self._tape(watch, recorder, passes.places, passes.before, state=state)
        except ValueError as error:
            self._refuse(str(error))
            return None
        arriving = torch._C._current_graph_task_id() != -1  # the optimizer steps amid a backward pass
        began = time.thread_time()
        proved = prove(tape, passes.losses, None if arriving or not self._gradients else self._gradients)
        self._seconds = time.thread_time() - began
        return proved

    def _tape(
        self,
        watch: OptimizerWatch,
        recorder: Recorder,
        places: list[int],
        before: Mapping[int, torch.Tensor] | None = None,
        *,
        state: bool,
    ) -> Tape:
        assert watch.optimizer is not None
        root = watch.roots[0].module if watch.roots else None
        setup = setup_of(watch.optimizer, recorder, state=state)
        return recorder.tape(places, before=before, step=watch.step, trace=watch.index, setup=setup, root=root)

    def _note(self, watch: OptimizerWatch, tape: Tape) -> None:
        """Keeps a tape, and writes down its graph."""
        self._asked = max(0, self._asked - 1) if watch.step not in RECORDED else self._asked
        self._keep(tape)
        self._probing.recorded(tape, self._seconds, self._given)
        try:
            self._record().journal.graph(step_graph(tape))
        except OSError as error:  # a disk that is nearly full: there may be room for the figures still
            self._refuse(f"no room for their graphs: {error.strerror or error}")
        if watch.step in self._options.bundles:
            self._write(tape)

    def _keep(self, tape: Tape) -> None:
        """The first and the last tapes, as many as there is room for."""
        self.kept.append(tape)
        while len(self.kept) > 1 and sum(t.bytes for t in self.kept) > self._options.most_bytes:
            del self.kept[1 if len(self.kept) > 2 else 0]

    def _refuse(self, reason: str) -> None:
        """No further step is recorded: what was in the way of one will be in the way of the next."""
        self._close()
        self._refused = self._refused or reason
        self._limit(reason)

    def _give_up(self) -> None:
        """This one step is not recorded: its backward pass does not come."""
        for watch in self._watches.values():
            if self._recorder is not None and self._wants(watch):
                self._waited[watch.index, watch.step] = PATIENCE
                self._limit(f"one has more than {MOST_FORWARDS} forward passes before a backward pass")
        self._close()

    def _limit(self, reason: str) -> None:
        if reason not in self._limits:
            self._limits.add(reason)
            self._record().journal.event("limit", reason=f"steps could not be recorded: {reason}")

    def _close(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()
        self._recorder, self._passes, self._gradients, self._running = None, {}, {}, None

    def _let_go(self) -> None:
        """The current step is no longer held."""
        self._drop()
        if self._capture is not None:
            self._capture.release()
        self._capture = None

    def _drop(self) -> None:
        if self._capture is not None:
            self._capture.clear()
        self._touched, self._nodes = False, []

    # -- the step that turned non-finite

    def _tell(self, watch: OptimizerWatch, tape: Tape | None) -> None:
        """Locates the first non-finite value of the coming update and writes it down, with a bundle of the step."""
        self._located = True
        location, bundle = Location(phase=Phase.NONE, text="It could not be located."), ""
        try:
            tape = tape or self._again(watch)
            location = at_update(self._watches.values(), locate(tape))
            bundle = self._write(tape)
        except Exception as error:  # noqa: BLE001 - whatever the model's code raises when it runs once more
            location = replace(location, doubts=(f"the step could not be run again: {error}",))
        finite = self._capture.finite if self._capture is not None else None
        if location.phase is Phase.NONE and finite is not None and not watch.loss_finite:
            location = by_side(location, finite=finite, nodes=self._nodes)
        self._record().journal.event(
            "nonfinite", trace=watch.index, step=watch.step, location=plain(location), bundle=bundle
        )
        self._let_go()

    def _again(self, watch: OptimizerWatch) -> Tape:
        """The tape of a step that was not recorded while it ran. ValueError where it can't be run once more."""
        capture, passes = self._capture, self._passes.get(watch.index, _Passes({}))
        if capture is None:
            raise ValueError(self._refused or "no forward pass of its model was seen")
        if torch._C._current_graph_task_id() != -1:
            msg = "the optimizer steps within backward"
            raise ValueError(msg)
        recorder, places = capture.record(passes.places, self._options.most_bytes)
        tape = self._tape(watch, recorder, places, state=True)
        return prove(tape, passes.losses, None if self._touched or passes.blind else gradients_of(recorder))

    def _write(self, tape: Tape) -> str:
        """The name of the bundle; "" where it can't be written, which the journal says."""
        try:
            return write_bundle(tape, self._record().folder, redact=self._options.redact).name
        except (WhylossError, OSError) as error:
            self._record().journal.event("limit", reason=f"no bundle of update {tape.step}: {error}")
            return ""


def _bytes(states: Iterable[Any]) -> int:
    there = [v for state in states for v in state.values() if isinstance(v, torch.Tensor)]
    return sum(t.numel() * t.element_size() for t in there)
