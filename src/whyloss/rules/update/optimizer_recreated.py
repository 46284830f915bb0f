"""optimizer-recreated."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.progress import fell
from whyloss.core.run import Facts, Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.series import Series, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

Traces = tuple[Trace, ...]


@dataclass(frozen=True)
class _Restarts:
    """How often the memory of an optimizer began anew, and after how many updates."""

    times: int
    length: float
    traces: Traces
    rebuilt: bool  # a new optimizer each time; else its state was cleared


@dataclass(frozen=True)
class OptimizerRecreated(Rule):
    """The optimizer forgets its momentum and its moments again and again: it is built anew inside the loop.

    ## What it detects
    One line that builds an optimizer for the same parameters three times and more, one after the other, while the
    weights go on from where they were; or an optimizer whose own update counter falls back several times.
    ## Why it matters
    Momentum is an average over about ten updates, Adam's second moment over a thousand: started anew every step or
    epoch they are noise. The first steps after each start have the size of the rate, whatever the gradient.
    ## What else looks like this
    A second optimizer for a second phase; cross-validation, repeated or federated trainings, which start from other
    weights each time; optimizers without any memory (plain SGD), which are an info.
    ## What to do
    Build the optimizer once, before the loop. To change the rate, use a scheduler or set param_groups[0]["lr"].
    """

    name = "optimizer-recreated"
    boundary = Boundary.UPDATE
    explains = (
        *("loss-noisy", "loss-oscillating", "loss-spikes", "plateau-high", "not-converged", "lr-too-low"),
        *("loss-flat", "loss-at-baseline", "underfitting"),
    )
    change = "Move the construction of the optimizer in front of the loop."
    verify = "Run again: one optimizer is built, and state/step counts all updates."

    times: int = threshold(3, unit="optimizers", why="two are two phases; the third from the same line is a loop")
    falls: int = threshold(2, unit="times", why="a checkpoint may be loaded once")
    going_on: float = threshold(
        0.8, unit="of the new starts", why="a checkpoint may be loaded at one or two of many epochs"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        found = [r for r in (self._rebuilt(group) for group in _groups(run)) if r is not None]
        found += [r for trace in run.traces if (r := self._cleared(trace)) is not None]
        for restarts in found:
            yield self._found(run, restarts)
        if not run.traces:
            yield self.skipped("no update was observed")
        elif not found:
            built = len(run.facts.optimizers_built)
            yield self.passed(f"{built or len(run.traces)} optimizers were built, none again and again")

    def _rebuilt(self, group: Traces) -> _Restarts | None:
        if len(group) < self.times or not _in_turn(group) or _begins_anew(group):
            return None
        joined = [_continues(a, b) for a, b in pairwise(group)]
        if np.mean(joined) < self.going_on:
            return None
        return _Restarts(len(group), float(np.median([t.updates for t in group[:-1]])), group, rebuilt=True)

    def _cleared(self, trace: Trace) -> _Restarts | None:
        """The counter before an update, or the number of tensors with any state where there is no counter."""
        counter, tensors = trace.signal("state/step"), trace.signal("state/tensors")
        if counter is not None and len(counter) > 1:
            fallen = np.flatnonzero(np.diff(counter.values) < 0)
            length = float(np.max(counter.values)) + 1
        elif tensors is not None and tensors.high.max() > 0:
            fallen = np.flatnonzero(np.diff(tensors.values) < 0)
            length = float(np.median(np.diff(tensors.steps[1:][fallen - 1]))) if len(fallen) > 1 else np.inf
        else:
            return None
        return _Restarts(len(fallen), length, (trace,), rebuilt=False) if len(fallen) >= self.falls else None

    def _found(self, run: Run, restarts: _Restarts) -> Outcome:
        trace = restarts.traces[0]
        memory, learned = _memory(trace), _learned(restarts.traces)
        lost = restarts.length <= memory or (memory > 0 and learned is False)
        built = max(_built_at(run, trace.place), restarts.times) if restarts.rebuilt else restarts.times
        how = (
            f"{trace.optimizer} is built {built} times for the same parameters"
            if restarts.rebuilt
            else f"the state of {trace.optimizer} began anew {built} times"
        )
        keeps = (
            f": what it remembers of {_named(trace)} is lost each time"
            if memory > 0
            else ", which loses nothing: it keeps no memory of past gradients"
        )
        return self.finding(
            f"{how}, every {restarts.length:.0f} updates{keeps}",
            Evidence("starts of the optimizer", built, 1, "times"),
            Evidence("updates from one start to the next", restarts.length, memory, "updates"),
            severity=Severity.WARNING if lost and memory > 0 else Severity.INFO,
            place=trace.place if restarts.rebuilt else trace.step_place,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        clears = np.arange(200) % 18.0
        momentum: dict[str, Any] = {"optimizer": "SGD", "settings": {"momentum": 0.9}}
        plain: dict[str, Any] = {"optimizer": "SGD", "settings": {"momentum": 0.0}}
        return (
            fires("Adam anew every 18 updates", _several(10, 18), Severity.WARNING),
            fires("Adam anew every step", _several(16, 1), Severity.WARNING),
            fires("momentum anew every step", _several(16, 1, **momentum), Severity.WARNING),
            fires("state cleared every 18 updates", sample_run(signals={"state/step": clears}), Severity.WARNING),
            silent("near miss: plain SGD", _several(10, 18, **plain)),
            silent("near miss: every 400 updates, and it learns", _several(5, 400)),
            silent("near miss: two phases", _several(2, 60)),
            silent("near miss: from other weights each time", _several(6, 60, apart=True)),
            silent("near miss: trained six times from the start", _several(6, 60, again=True)),
            silent("near miss: weights written between the optimizers", _several(6, 60, written=True)),
            silent("near miss: other tensors", _several(6, 60, other=True)),
            silent("near miss: one optimizer", sample_run(signals={"state/step": np.arange(200.0)})),
            silent(
                "near miss: a checkpoint loaded once",
                sample_run(signals={"state/step": np.r_[np.arange(100.0), np.arange(40.0, 140.0)]}),
            ),
        )


def _groups(run: Run) -> Iterator[Traces]:
    """Traces of optimizers from one line for the same tensors, in their order. Not of lines that go through several
    models in turn, as a federated training or a search does."""
    found: dict[Any, dict[frozenset[int], list[Trace]]] = {}
    for trace in run.traces:
        line = trace.place.file, trace.place.line, trace.optimizer
        found.setdefault(line, {}).setdefault(frozenset(t.key for t in trace.trained), []).append(trace)
    yield from (tuple(group) for groups in found.values() if len(groups) == 1 for group in groups.values())


def _in_turn(group: Traces) -> bool:
    """Each ended before the next began."""
    clocks = [t.signal("seconds") for t in group]
    return all(a is None or b is None or a.last <= b.first for a, b in pairwise(clocks))


def _continues(a: Trace, b: Trace) -> bool:
    """Whether nobody else wrote to the weights in between, and the norm of each is where the updates of the one before
    can have brought it."""
    if not _untouched(a, b):
        return False
    for t in a.trained:
        norms, moves = a.signal(f"weight/norm[{t.name}]"), a.signal(f"update/norm[{t.name}]")
        after = next((b.signal(f"weight/norm[{o.name}]") for o in b.trained if o.key == t.key), None)
        if norms is None or moves is None or after is None:
            return False
        away = (a.updates - int(norms.steps[-1])) * float(moves.values[-5:].max())
        if not abs(after.first - norms.last) <= away + 1e-3 * norms.last * (away > 0):
            return False
    return bool(a.trained)


def _untouched(a: Trace, b: Trace) -> bool:
    """Whether the tensors were written to in between no more often than between two updates of one optimizer."""
    before, after, first = a.signal("weight/writes"), a.signal("weight/written"), b.signal("weight/writes")
    if before is None or after is None or first is None:
        return True
    next_to = np.flatnonzero(np.diff(before.steps) == 1)
    usual = float(np.median(before.values[next_to + 1] - after.values[next_to])) if len(next_to) else 0.0
    of_each = after.last - before.last + usual
    return bool(first.first - after.last <= usual + of_each * (a.updates - 1 - int(after.steps[-1])))


def _begins_anew(group: Traces) -> bool:
    """Whether the loss starts over with each optimizer: nearer to the very first one than to where the one before
    ended."""
    losses = [t.loss for t in group]
    if any(loss is None or len(loss) < 6 for loss in losses):
        return False
    ends = [(float(np.median(x.values[:3])), float(np.median(x.values[-3:]))) for x in losses if x is not None]
    first = ends[0][0]
    fallen = [before for _, before in ends[:-1] if before < 0.95 * first]
    back = [
        abs(start - first) < abs(start - before) for (_, before), (start, _) in pairwise(ends) if before < 0.95 * first
    ]
    return bool(fallen) and float(np.mean(back)) > 0.5


def _memory(trace: Trace) -> float:
    """Over how many updates the optimizer averages, roughly; 0 where it keeps nothing. Adam's second moment is of use
    after a tenth of its thousand updates, as it corrects for its start."""
    settings = trace.settings
    momentum = settings.get("momentum")
    if isinstance(momentum, float) and 0.0 < momentum < 1.0:
        return max(1 / (1 - momentum), 2.0)
    alpha = settings.get("alpha")
    if trace.optimizer == "RMSprop" and isinstance(alpha, float) and alpha < 1.0:
        return 1 / (1 - alpha)
    return 0.0 if "SGD" in trace.optimizer else 100.0


def _named(trace: Trace) -> str:
    return "past gradients" if "SGD" in trace.optimizer else "the size of the gradients"


def _learned(group: Traces) -> bool | None:
    losses = [t.loss for t in group if t.loss is not None]
    joined = Series.of(np.concatenate([x.values for x in losses])) if losses else None
    result = fall(joined) if joined is not None and len(joined.finite) >= 20 else None
    return None if result is None else fell(result)


def _built_at(run: Run, place: Place) -> int:
    return sum(1 for p in run.facts.optimizers_built if (p.file, p.line) == (place.file, place.line))


def _several(
    count: int,
    updates: int,
    *,
    apart: bool = False,
    again: bool = False,
    other: bool = False,
    written: bool = False,
    **trace: Any,
) -> Run:
    """Optimizers that follow each other, each for so many updates of one falling loss."""
    whole = falling(count * updates) if count * updates >= 20 else flat(count * updates)
    traces = []
    for k in range(count):
        part = falling(updates) if again else whole[k * updates : (k + 1) * updates]
        writes = 6.0 * (k * updates + np.arange(updates)) + 6.0 * k * written
        clock = {"seconds": k + np.linspace(0.0, 0.9, updates), "weight/writes": writes, "weight/written": writes + 6}
        base = sample_run(loss=part, signals=clock, **trace).traces[0]
        tensors = tuple(replace(t, key=t.key + 100 * k * other) for t in base.tensors)
        sampled = base.sampled
        if apart:
            sampled = replace(sampled, values=sampled.values * (1.0 + 0.3 * k), low=sampled.low, high=sampled.high)
        traces.append(replace(base, index=k, tensors=tensors, sampled=sampled))
    built = tuple(t.place for t in traces)
    return Run(traces=tuple(traces), facts=Facts(end="finished", optimizers_built=built))
