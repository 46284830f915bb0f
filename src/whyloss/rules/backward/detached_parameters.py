"""detached-parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core import reach
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.initialisation import untrained
from whyloss.core.progress import learned
from whyloss.core.reach import Tensors, depth, in_order, kept_elsewhere, listed
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_modules, sample_run, sample_tensors
from whyloss.core.series import ABSENT
from whyloss.core.step_graph import Leaf, Op, StepGraph, Value
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class DetachedParameters(Rule):
    """Layers that run in every forward pass get no gradient: the path from the loss to them is cut.

    ## What it detects
    Tensors that the optimizer is to train, whose modules ran, and whose gradient was None at every update. In a step
    that was recorded, the call and the line that cut the graph behind them are named.
    ## Why it matters
    They stay at their random start; what comes after them learns on random features, which can still lower the loss.
    ## What else looks like this
    Target networks and averaged copies (they began as exact copies, or move without a gradient); a loaded backbone
    under no_grad (its weights no longer look like an initialisation); heads and experts that get a gradient at some
    updates; a head whose output the loss does not use, in a run that learns. These are an info at the most.
    ## What to do
    Look between the last module without and the first one with a gradient for `.detach()`, `.data`, `.item()`,
    `.numpy()`, `torch.tensor(…)`, `torch.no_grad()`, argmax, or an output that is computed and then not used.
    """

    name = "detached-parameters"
    boundary = Boundary.BACKWARD
    explains = (
        *("vanishing-gradient", "zero-gradient", "loss-flat", "loss-at-baseline", "plateau-high", "lr-too-low"),
        *("underfitting", "not-converged", "symmetric-init", "activation-collapse", "loss-detached"),
    )
    change = (
        "Let the loss reach these layers: remove what cuts the graph behind them, or take them out of the optimizer."
    )
    verify = "Run again: grad/norm of each of these tensors is observed, and above 0."

    updates: int = threshold(
        3, unit="updates", why="alternating losses and optional branches have shown up within three"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            yield from self._judge(trace, reach.reached_elsewhere(run, trace))

    def _judge(self, trace: Trace, elsewhere: frozenset[int]) -> Iterator[Outcome]:
        if len(trace.every.steps) < self.updates or not trace.trained:
            yield self.skipped(f"needs the gradients of {self.updates} updates")
            return
        cut, _ = reach.idle(trace, self.updates)
        cut = tuple(t for t in cut if t.key not in elsewhere)
        aside = kept_elsewhere(trace, cut)
        meant = tuple(t for t in cut if t not in aside)
        if meant:
            yield self._found(trace, meant)
        elif aside:
            yield self.finding(
                f"{listed(aside)} are in the optimizer without a gradient, as copies that are kept up by other means",
                Evidence("tensors without a gradient", len(aside), None, "tensors"),
                severity=Severity.INFO,
                place=trace.place_of(aside[0]),
                change="Leave a copy that is updated by other means out of the optimizer.",
            )
        else:
            yield self.passed(
                f"all of the {len(trace.trained)} trained tensors whose modules ran had a gradient at some update"
            )

    def _found(self, trace: Trace, cut: Tensors) -> Finding:
        cut = in_order(trace, cut)
        alive = tuple(t for t in reach.with_gradient(trace, trace.tensors, 1) if depth(trace, t) >= 0)
        behind = [t for t in alive if depth(trace, t) > depth(trace, cut[-1])]
        first = min(behind, key=lambda t: depth(trace, t)).module if behind else ""
        severity, why = self._severity(trace, cut, alive)
        rows = len(trace.every.steps)
        others = f", while {first} does" if first else "" if alive else ", nor does any other tensor"
        modules = sorted({t.module or "the model" for t in cut})
        those = modules[0] if len(modules) == 1 else f"their {len(modules)} modules"
        where = _cut_at(trace, cut)
        named = f": {where.name} cuts the graph" if where else ""
        return self.finding(
            f"{listed(cut)} got no gradient at any of {rows} updates though {those} ran{others}{why}{named}",
            Evidence("updates with a gradient", 0, f"some of {rows}", "updates", (0, trace.updates - 1)),
            Evidence("values without a gradient", reach.values(cut), reach.values(trace.trained), "of all trained"),
            Evidence("last module without one → first with one", f"{cut[-1].module} → {first or 'none'}"),
            severity=severity,
            place=_place(trace, cut, where),
            certain=severity is Severity.ERROR,
        )

    def _severity(self, trace: Trace, cut: Tensors, alive: Tensors) -> tuple[Severity, str]:
        """An error where everything from the input up to the cut is without gradient: a cut path, not a side branch."""
        fresh = untrained(cut)
        if fresh is False:
            return Severity.INFO, "; their weights look trained, as of a backbone that is kept as it is"
        if fresh and all(depth(trace, t) > depth(trace, cut[-1]) for t in alive):
            return Severity.ERROR, ""
        if not any(t.user_code for t in cut):
            return Severity.INFO, "; they belong to a library's model"
        if learned(trace):
            return Severity.INFO, "; the run learns without them"
        return Severity.WARNING, ""

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [t.name for t in sample_tensors()]
        body, all_cut, branch = _none(names[:4]), _none(names), _none(names[2:4])
        unreached = {n: {"in_graph": False} for n in names}
        trained = {n: {"in_graph": False, "std": 0.3, "largest": 1.7} for n in names}
        drift = {f"weight/norm[{n}]": np.linspace(1.0, 2.0, 200) for n in names[:4]}
        some = {f"grad/norm[{n}]": np.where(np.arange(200) % 2 == 0, ABSENT, 0.1) for n in names[4:]}
        return (
            fires("encoder cut off", sample_run(signals=body, changed=unreached), Severity.ERROR),
            fires("encoder cut off at a line", _recorded(body, unreached), Severity.ERROR),
            fires("seen at the third update", sample_run(3, signals=body, changed=unreached), Severity.ERROR),
            fires("whole loss cut off", sample_run(loss=flat(60), signals=all_cut, changed=unreached), Severity.ERROR),
            fires("branch cut off", sample_run(loss=flat(60), signals=branch, changed=unreached), Severity.WARNING),
            silent("near miss: an output that is not used; it learns", sample_run(signals=branch, changed=unreached)),
            silent("near miss: loaded backbone under no_grad", sample_run(signals=body, changed=trained)),
            silent("near miss: average of other weights", sample_run(signals=body | drift, changed=unreached)),
            silent("near miss: target network", _twin()),
            silent("near miss: a head trained at every other update", sample_run(signals=some)),
            silent("near miss: gradients set to None by hand", sample_run(signals=body)),
            silent("near miss: trained by another loss", _two_losses(body)),
        )


def _cut_at(trace: Trace, cut: Tensors) -> Op | None:
    """The call of a recorded step in which the gradient of these tensors ended, if its result goes into the loss."""
    for graph in trace.graphs:
        for tensor in reversed(cut):
            found = [c.op for c in graph.cut_of(tensor.name) if c.leads and c.op.place.file]
            if found:
                return found[-1]
    return None


def _place(trace: Trace, cut: Tensors, where: Op | None) -> Place:
    place = trace.place_of(cut[0])
    if where is None:
        return place
    return replace(place, op=where.name, file=where.place.file, line=where.place.line, source=where.place.source)


def _none(names: list[str]) -> dict[str, float]:
    return {f"grad/norm[{n}]": ABSENT for n in names}


def _twin() -> Run:
    """`online` trains; `target` began as its copy, runs first and gets no gradient."""
    tensors, modules = [], []
    for k, p in enumerate(("target.", "online.")):
        for t in sample_tensors():
            tensors.append(replace(t, key=t.key + 100 * k, in_graph=k == 1, name=p + t.name, module=p + t.module))
        modules += [replace(m, path=p + m.path, order=(m.order or 0) + 100 * k, slots=()) for m in sample_modules()]
    return sample_run(loss=flat(60), tensors=tensors, modules=modules, signals=_none([t.name for t in tensors[:6]]))


def _recorded(body: dict[str, float], changed: dict[str, dict[str, bool]]) -> Run:
    """With the graph of a step: fc1, then detach, then fc3 and the loss."""
    value, line = (
        Value(shape=(8, 4), dtype="float32"),
        Place(file="train.py", line=9, source="h = self.fc1(x).detach()"),
    )
    first, last = (Leaf(value=n, role="parameter", name=f"{fc}.weight") for n, fc in ((0, "fc1"), (3, "fc3")))
    calls = (("linear", (0,), 1), ("Tensor.detach", (1,), 2), ("linear", (2, 3), 4), ("Tensor.mean", (4,), 5))
    ops = tuple(
        Op(name=f"torch.{name}", tensors={str(i): n for i, n in enumerate(given)}, outputs=(made,), place=line)
        for name, given, made in calls
    )
    values = {n: replace(value, requires_grad=n in (0, 1, 3, 4, 5)) for n in range(6)}
    graph = StepGraph(ops=ops, values=values, leaves=(first, last), losses=(5,))
    return sample_run(signals=body, changed=changed, graphs=(graph,))


def _two_losses(body: dict[str, float]) -> Run:
    cut = {t.name: {"in_graph": False} for t in sample_tensors()}
    return Run(traces=(sample_run(signals=body, changed=cut).traces[0], replace(sample_run().traces[0], index=1)))
