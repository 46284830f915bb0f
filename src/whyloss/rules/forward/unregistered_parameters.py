"""unregistered-parameters."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.progress import learned
from whyloss.core.reach import Tensors, listed, outside, stray, values
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run
from whyloss.core.sample_graph import F, SampleGraph
from whyloss.core.step_graph import INITIALISERS, Op, StepGraph
from whyloss.rules.recorded import at, place_of, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class UnregisteredParameters(Rule):
    """Layers that the forward pass uses are no part of the model: parameters() does not list them.

    ## What it detects
    Parameters that the loss reaches and neither a module nor an optimizer holds: those of layers in a plain list, tuple
    or dict, or bare ones. And parameters that are made and initialised anew in every recorded step, within forward().
    ## Why it matters
    The optimizer never sees them: they stay random, and are missing from state_dict(). Layers that are made anew are
    other random layers at every step, so that nothing behind them can rely on what they give.
    ## What else looks like this
    Layers in a plain list whose parameters are given to the optimizer one by one; layers that are initialised when they
    first run; a hand-made optimizer over plain tensors; inputs that want a gradient. None of them is reported. A random
    layer directly on the data, in a run that learns, may be augmentation: an info.
    ## What to do
    Make layers in `__init__`, as attributes or in nn.ModuleList or nn.ModuleDict; single weights as nn.Parameter.
    """

    name = "unregistered-parameters"
    boundary = Boundary.FORWARD
    explains = (
        *("optimizer-missing-parameters", "optimizer-stale-parameters", "exploding-gradient", "loss-at-baseline"),
        *("loss-flat", "plateau-high", "underfitting", "loss-noisy", "not-converged", "lr-too-low", "symmetric-init"),
        *("gradient-not-cleared", "vanishing-gradient", "detached-parameters", "nondeterministic-step"),
    )
    change = "Make the layers in __init__, and keep them in nn.ModuleList or nn.ModuleDict."
    verify = "Run again: model.parameters() lists them, and each has an update/norm above 0."
    references = ("https://docs.pytorch.org/docs/stable/generated/torch.nn.ModuleList.html",)

    updates: int = threshold(3, unit="updates", why="a gradient at three updates is no accident")
    steps: int = threshold(2, unit="recorded steps", why="a lazy layer is initialised in the first of them only")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            hidden = tuple(t for t in outside(run, trace, self.updates) if not t.in_model)
            anew = [found for g in trace.graphs if (found := _made(g))]
            if hidden:
                yield self._hidden(trace, hidden)
            elif len(anew) >= self.steps and len(anew) >= len(trace.graphs) - 1:
                yield self._anew(trace, anew)
            elif not trace.graphs and len(trace.every.steps) < self.updates:
                yield self.skipped(f"needs {self.updates} updates, or recorded steps")
            else:
                yield self.passed("every layer that the loss reaches belongs to the model or to an optimizer")

    def _hidden(self, trace: Trace, hidden: Tensors) -> Finding:
        first = hidden[0]
        where, alone = first.module, stray(first)
        whole = values(t for t in trace.tensors if t.trainable)
        what = f"{first.name} belongs to no module" if alone else f"{where} stands in a plain Python container"
        holder = where.rpartition("[")[0] or where
        return self.finding(
            f"{what}, so that parameters() does not list it: {listed(hidden)}, used in the forward pass, "
            f"{'get gradients and are' if len(hidden) > 1 else 'gets a gradient and is'} never updated",
            Evidence("values that parameters() does not list", values(hidden), 0, f"of {whole} trainable"),
            severity=Severity.ERROR,
            place=_used(trace) or trace.place_of(first) if alone else trace.place_of(first),
            certain=True,
            change="Make it in __init__, as an attribute or in nn.ParameterList: not in forward(), nor in a plain list."
            if alone
            else f"Keep {holder} in nn.ModuleList or nn.ModuleDict, before the optimizer is built.",
        )

    def _anew(self, trace: Trace, anew: list[list["_Fresh"]]) -> Finding:
        first = anew[0][0]
        mild = all(f.on_data for step in anew for f in step) and bool(learned(trace))
        count = len(anew[0])
        return self.finding(
            f"{count} parameter{'s are' if count > 1 else ' is'} made and initialised anew in every forward pass "
            f"({at(first.op)}): what {'they learn' if count > 1 else 'it learns'} is thrown away with "
            f"{'them' if count > 1 else 'it'}"
            + ("; on the data itself, and the run learns all the same" if mild else ""),
            Evidence(
                "recorded steps that made them",
                len(anew),
                0,
                f"of {len(trace.graphs)}",
                tuple(f.step for step in anew for f in step[:1]),
            ),
            severity=Severity.INFO if mild else Severity.ERROR,
            place=place_of(first.op),
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [f"fc{k}.{part}" for k in (1, 2) for part in ("weight", "bias")]
        hidden = {n: {"in_optimizer": False, "in_model": False, "module": f"layers[{n[2]}]"} for n in names}
        given = {n: fields | {"in_optimizer": True} for n, fields in hidden.items()}
        alone = {n: {"in_optimizer": False, "in_model": False, "module": "", "kind": "Parameter"} for n in names}
        bare = {n: {"in_optimizer": False, "in_model": False, "module": "", "kind": ""} for n in names}
        made, first, usual = _step(), _step(data=True), _step(made=False)
        return (
            fires("layers in a plain list", sample_run(loss=flat(60), changed=hidden), Severity.ERROR),
            fires("parameters in a plain list", sample_run(loss=flat(60), changed=alone), Severity.ERROR),
            fires("a layer made in forward()", sample_recorded(made, loss=flat(60)), Severity.ERROR),
            fires("seen at the second update", sample_recorded(made, updates=2), Severity.ERROR),
            fires("random, on the data, and nothing is learned", sample_recorded(first, loss=flat(60))),
            silent("near miss: a plain list, given to the optimizer", sample_run(changed=given)),
            silent("near miss: a lazy layer", sample_recorded(made, usual)),
            silent("near miss: a random convolution as augmentation", sample_recorded(first)),
            silent("near miss: inputs that want a gradient", sample_run(changed=bare)),
            silent("near miss: layers of the model", sample_recorded(usual)),
        )


@dataclass(frozen=True)
class _Fresh:
    """The call that initialised, within the step, a parameter that nobody owns."""

    step: int
    op: Op
    on_data: bool  # what it is multiplied with is data as it came into the step


def _made(graph: StepGraph) -> list[_Fresh]:
    nameless = {leaf.value for leaf in graph.leaves if leaf.role == "parameter" and not leaf.name}
    draws = [op for op in graph.ops if op.kind in INITIALISERS and not nameless.isdisjoint(op.inputs[:1])]
    entries = {id(op) for op, _ in graph.entries}
    found = []
    for draw in draws:
        users = [op for op in graph.users(draw) if op.kind not in INITIALISERS]
        if any(graph.differentiable(op, n) for op in users for n in op.inputs if n in (*draw.outputs, *draw.inputs)):
            found.append(_Fresh(graph.step, draw, id(users[0]) in entries))
    return found


def _used(trace: Trace) -> Place | None:
    """Of the call that uses a parameter without a name."""
    for graph in trace.graphs:
        nameless = {leaf.value for leaf in graph.reaching if leaf.role == "parameter" and not leaf.name}
        for op in graph.ops:
            if not nameless.isdisjoint(op.inputs):
                return place_of(op)
    return None


def _step(*, made: bool = True, data: bool = False) -> StepGraph:
    """A layer that is made within the step, on the data or behind another layer."""
    step = SampleGraph()
    h = step.leaf("input", "x", 8, 4)
    h = h if data else step.linear(h, "fc1", 4)
    weight = step.leaf("parameter", "" if made else "fc2.weight", 4, 4)
    if made:
        step.call("torch.nn.init.kaiming_uniform_", weight, out=(weight,), changed=(weight,), grad=False)
    h = step.call(F + "linear", tensors={"input": h, "weight": weight}, shape=(8, 4))
    out = step.linear(step.like("torch.relu", h), "head", 3)
    return step.graph(step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64")))
