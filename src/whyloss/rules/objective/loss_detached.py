"""loss-detached."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.run import Facts, Run
from whyloss.core.sample import flat
from whyloss.core.sample_graph import SampleGraph, T
from whyloss.core.step_graph import BACKWARD, StepGraph
from whyloss.rules.recorded import Sight, look, named, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent

REFUSED = "does not require grad and does not have a grad_fn"  # what torch says where nobody forced it


@dataclass(frozen=True)
class LossDetached(Rule):
    """The loss has no path to any parameter: backward computes nothing.

    ## What it detects
    In a recorded step, a loss from which no gradient can flow to anything, because it was made of numbers, detached,
    or computed without grad mode, and then forced to require a gradient. Without the forcing torch raises an error,
    which is named here, too.
    ## Why it matters
    All gradients are None or 0, and no update changes anything. `requires_grad_()` on a loss hides the error and
    mends nothing.
    ## What else looks like this
    Inputs that are trained instead of parameters, and a graph that began before the step: both have a path. Layers
    that are cut off while others still learn are detached-parameters.
    ## What to do
    Compute the loss from the model's output with torch alone: no `.item()`, `.numpy()`, `.detach()`, `.data`,
    `torch.tensor(...)`, argmax or `no_grad()` on the way.
    """

    name = "loss-detached"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("detached-parameters", "unused-parameters", "zero-gradient", "loss-flat", "loss-at-baseline", "plateau-high"),
        *("update-not-landing", "vanishing-gradient", "lr-too-low", "underfitting", "not-converged", "step-missing"),
        *("loss-noisy", "gradient-cleared-early", "lr-zero"),
    )
    change = "Let the loss be made of the model's output by differentiable calls, and remove requires_grad_() from it."
    verify = "Run again: grad/total is observed, and above 0."

    def check(self, run: Run) -> Iterator[Outcome]:
        if REFUSED in run.facts.error:
            yield self._refused(run)
            return
        for trace in run.traces:
            yield from look(self, trace, _see, "each loss had a path to what is trained")

    def _refused(self, run: Run) -> Finding:
        return self.finding(
            "backward was called on a loss that has no path to any parameter, and torch refused",
            Evidence("the error", run.facts.error.partition("\n")[0], "none"),
            severity=Severity.ERROR,
            first_step=run.updates,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        error = "RuntimeError: element 0 of tensors " + REFUSED
        still = flat(60)
        return (
            fires("detached and forced", sample_recorded(_step(forced=True), loss=still), Severity.ERROR),
            fires("named at the first update", sample_recorded(_step(forced=True), loss=[2.3]), Severity.ERROR),
            fires("made of a number", sample_recorded(_number(), loss=still), Severity.ERROR),
            fires("torch refused", sample_recorded(_step(), facts=Facts(error=error, end="exception"))),
            silent("near miss: a path", sample_recorded(_step())),
            silent("near miss: an input is trained", sample_recorded(_input_only())),
            silent("near miss: another error", sample_recorded(_step(), facts=Facts(error="KeyError: 'x'"))),
        )


def _see(graph: StepGraph) -> Iterator[Sight]:
    roots = set(graph.flow.roots)
    carried = any(leaf.carried for leaf in graph.leaves)
    if not roots or carried or any((-1, leaf.value) not in roots for leaf in graph.reaching):
        return
    cuts = [cut.op for cut in graph.cuts if cut.leads] or [cut.op for cut in graph.cuts]
    ends = [op for op in graph.ops if op.name == BACKWARD] or list(graph.ends)
    where = cuts[-1] if cuts else next(iter(ends), None)
    if where is not None:
        why = f": {named(where)} ends it" if cuts else ""
        yield Sight(
            op=where,
            message=f"no gradient flows from the loss to any parameter{why}",
            evidence=(Evidence("tensors that a gradient reaches", 0, 1, "tensors"),),
        )


def _step(*, forced: bool = False) -> StepGraph:
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    loss = step.loss("cross_entropy", out, step.leaf("target", "", 8, dtype="int64"))
    if forced:
        loss = step.like(T + "detach", loss, live=False)
        step.call(T + "requires_grad_", loss, out=(loss,), arguments={"requires_grad": True})
    return step.graph(loss)


def _number() -> StepGraph:
    """torch.tensor(loss.item(), requires_grad=True)"""
    step = SampleGraph()
    out = step.linear(step.leaf("input", "x", 8, 6), "head", 10, aside=True)
    step.call(T + "item", out, out=(), aside=True)
    return step.graph(step.leaf("constant", "", requires_grad=True))


def _input_only() -> StepGraph:
    step = SampleGraph()
    x, weight = step.leaf("constant", "", 8, 4, requires_grad=True), step.leaf("buffer", "w", 4, 4)
    return step.graph(step.call(T + "sum", step.call("torch.matmul", x, weight), shape=()))
