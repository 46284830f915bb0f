"""Which small experiments are made on which recorded steps of a running training, and how long they may take."""

from collections import deque
from collections.abc import Callable

import torch

from whyloss.core.probe import Probe
from whyloss.observe.record import Record, plain
from whyloss.tape.probes import make
from whyloss.tape.probes.alignment import NAME as TARGET_OFFSET
from whyloss.tape.probes.batch_independence import NAME as BATCH_INDEPENDENCE
from whyloss.tape.probes.bench import Bench
from whyloss.tape.probes.causality import NAME as CAUSALITY
from whyloss.tape.probes.derivative import NAME as DERIVATIVE
from whyloss.tape.probes.hand_written import NAME as INDEPENDENT_LOSS
from whyloss.tape.probes.input_independence import NAME as INPUT_INDEPENDENCE
from whyloss.tape.probes.memory import NAME as OVERFIT_BATCH
from whyloss.tape.probes.memory import NEAR, floor
from whyloss.tape.probes.padding import NAME as PADDING_INVARIANCE
from whyloss.tape.tape import Tape

FIRST = 2  # update: by then a head or a branch that began at zero has moved
ONCE = (
    DERIVATIVE,
    TARGET_OFFSET,
    CAUSALITY,
    BATCH_INDEPENDENCE,
    PADDING_INVARIANCE,
    INDEPENDENT_LOSS,
)  # what holds of one step holds of all
ANEW = (INPUT_INDEPENDENCE,)  # depends on what was learned
MOST_STEPS = 6  # of one optimizer
MOST_TRACES = 4
SECONDS = 0.25  # for the experiments on one step
ALL_SECONDS = 0.6  # for those of the run
AT_END = 0.7  # for the one at its end
RECENT = 50  # losses that say where a run is when it ends
ENOUGH = 100  # updates before it can be said to stay where it is


class Probing:
    """Experiments on tapes as they are recorded. Within the observer's guard, and never while a step is under way."""

    def __init__(self, record: Callable[[], Record]) -> None:
        self._record = record
        self._waiting: list[tuple[Tape, float, int]] = []
        self._done: set[tuple[int, str]] = set()
        self._steps: dict[int, int] = {}
        self._left = ALL_SECONDS
        self._recent: dict[int, deque[float]] = {}
        self._updates: dict[int, int] = {}
        self._said: set[tuple[int, str, str]] = set()

    def recorded(self, tape: Tape, seconds: float, given: int) -> None:
        """A step was recorded and replayed, which took so long; the experiments follow after its update. `given`:
        tensors that its model was called with."""
        if tape.step >= FIRST and _can_be_changed(tape):
            self._waiting.append((tape, seconds, given))

    def look(self, trace: int, loss: float) -> None:
        self._recent.setdefault(trace, deque(maxlen=RECENT)).append(loss)
        self._updates[trace] = self._updates.get(trace, 0) + 1

    def updated(self) -> None:
        """The update was made: nothing of the step is needed any more."""
        waiting, self._waiting = self._waiting, []
        for tape, seconds, given in waiting:
            count = self._steps[tape.trace] = self._steps.get(tape.trace, 0) + 1
            if count <= MOST_STEPS and len(self._steps) <= MOST_TRACES:
                self._make(tape, seconds, given)

    def _make(self, tape: Tape, seconds: float, given: int) -> None:
        names = [*(n for n in ONCE if (tape.trace, n) not in self._done), *ANEW]
        bench = Bench(tape, seconds / 2, min(SECONDS, self._left), given)
        before = bench.left
        for probe in make(bench, names):
            if probe.outcome:
                self._done.add((tape.trace, probe.name))
            self._write(probe)
        self._left -= before - bench.left

    def finish(self, kept: list[Tape]) -> None:
        """The training ends. Where its loss is that of a constant prediction still, a batch is learned by heart."""
        for trace, recent in self._recent.items():
            tape = next((t for t in reversed(kept) if t.trace == trace and t.step > FIRST and _can_be_changed(t)), None)
            if tape is not None and self._updates[trace] >= ENOUGH and self._knows_nothing(tape, recent):
                for probe in make(Bench(tape, 0.0, AT_END), (OVERFIT_BATCH,)):
                    self._write(probe)
                return

    def _knows_nothing(self, tape: Tape, recent: "deque[float]") -> bool:
        bench = Bench(tape, 0.0, SECONDS)
        if len(bench.pairs) != 1:
            return False
        pair = bench.pairs[0]
        level = floor(pair, bench.base[pair.target])
        return level > 0 and sorted(recent)[len(recent) // 2] >= NEAR * level

    def _write(self, probe: Probe) -> None:
        said = (probe.trace, probe.name, probe.reason)
        if not probe.outcome and said in self._said:
            return
        self._said.add(said)
        self._record().journal.event("probe", **plain(probe))


def _can_be_changed(tape: Tape) -> bool:
    """Replayed bit for bit, in one process, and not compiled."""
    alone = not (torch.distributed.is_available() and torch.distributed.is_initialized())
    return tape.faithful and not tape.tolerance and alone
