"""loss-sign."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.probe import made
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, sample_run, sample_tensors, with_probe
from whyloss.core.sample_graph import F, SampleGraph, T
from whyloss.core.step_graph import Op, StepGraph
from whyloss.core.terms import Term, terms
from whyloss.rules.recorded import Sight, at, look, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent

PROBE = "independent-loss"


@dataclass(frozen=True)
class LossSign(Rule):
    """The loss rewards being wrong: a loss function goes into it with a minus sign.

    ## What it detects
    In a recorded step, every loss function of torch that the loss is made of (cross-entropy, squared error, …) is
    negated on its way to `backward`: by a minus, `1 - loss`, a negative factor, or an optimizer with `maximize=True`.
    Or a loss that is written by hand equals minus a cross-entropy or squared error, computed once more.
    ## Why it matters
    Each step raises what is to be small. The number that is printed falls, without bound, while predictions get worse.
    ## What else looks like this
    A negative value proves nothing: likelihoods of densities, contrastive, policy and critic losses take any sign, and
    entropy is subtracted on purpose. Another optimizer with another loss (a generator against a discriminator), a loss
    function that is added beside one that is subtracted (a domain classifier to be confused), and inputs that are
    trained to be misclassified are left alone. Two minus signs cancel.
    ## What to do
    Remove the minus sign; where a score is to be maximised, negate the score and not the loss.
    """

    name = "loss-sign"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("loss-diverging", "loss-nonfinite", "lr-too-high", "exploding-gradient", "loss-flat", "plateau-high"),
        *("nonfinite-forward", "nonfinite-backward", "gradient-overflow", "loss-off-baseline", "underfitting"),
        *("loss-at-baseline", "not-converged", "dead-relu", "saturated-activation", "activation-explosion"),
    )
    change = "Remove the minus sign before this loss, or maximize=True from the optimizer."
    verify = "Run again: the loss is above 0 and falls, and accuracy rises."

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            if _others(run, trace):
                yield self.skipped("another optimizer has another loss: the two may work against each other on purpose")
            elif trace.trained and not any(t.kind for t in trace.trained):
                yield self.skipped("what is trained belongs to no module: it may be an input that is to mislead one")
            else:
                yield from self._by_hand(run, trace) or self._judge(trace)

    def _by_hand(self, run: Run, trace: Trace) -> list[Outcome]:
        """Of a loss that no function of torch makes: an experiment has compared its value."""
        probes = made(run.probes, trace.index, PROBE)
        ascends = trace.settings.get("maximize") is True
        if not probes or probes[-1].outcome != ("agrees" if ascends else "negated"):
            return []
        what, value = probes[-1].subject, probes[-1].number("loss")
        how = f"and {trace.optimizer} has maximize=True" if ascends else "that is negated"
        return [
            self.finding(
                f"the loss is the {what}, written by hand, {how}: it is made larger by the updates, not smaller",
                Evidence("loss", value, "below 0" if ascends else "above 0", "", (probes[-1].step,)),
                severity=Severity.ERROR,
                place=probes[-1].place,
                first_step=probes[-1].step,
                certain=True,
            )
        ]

    def _judge(self, trace: Trace) -> Iterator[Outcome]:
        ascends = trace.settings.get("maximize") is True
        factors = [{t.factor for t in terms(graph) if t.live and t.loss} for graph in trace.graphs]
        steady = len(factors) > 1 and all(f == factors[0] for f in factors)  # or a reward is among them

        def see(graph: StepGraph) -> Iterator[Sight]:
            live = [t for t in terms(graph) if t.live]
            losses = [t for t in live if t.loss]
            against = [t for t in losses if (t.factor > 0 if ascends else t.factor < 0)]
            if losses and against == losses and (steady or all(abs(t.factor) == 1 for t in losses)):
                beside = [t for t in live if not t.loss and not graph.flow.is_weight(t.state)]
                yield _sight(losses[0], ascends, bool(beside), trace)

        yield from look(self, trace, see, "no loss function was negated")

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        by_hand, value = sample_run(objectives=()), {"loss": -2.3}
        upward = sample_run(objectives=(), settings={"maximize": True})
        down = -falling(60, 0.2, 90.0)
        foreign = [replace(t, key=t.key + 100) for t in sample_tensors()]
        other = replace(sample_recorded(loss=falling(60, 1.0), tensors=foreign).traces[0], index=1)
        negated = sample_recorded(_step("neg"), loss=down)
        return (
            fires("minus cross-entropy", negated, Severity.ERROR),
            fires("named at the first update", sample_recorded(_step("neg"), loss=[-2.3]), Severity.ERROR),
            fires("times -1", sample_recorded(_step("mul", -1.0), loss=down), Severity.ERROR),
            fires("one minus the loss", sample_recorded(_step("__rsub__", 1), loss=down), Severity.ERROR),
            fires("an optimizer that maximises", sample_recorded(_step(), settings={"maximize": True}), Severity.ERROR),
            fires("minus a cross-entropy by hand", with_probe(by_hand, PROBE, "negated", value), Severity.ERROR),
            silent("near miss: the same, and maximize", with_probe(upward, PROBE, "negated", value)),
            silent("near miss: a cross-entropy by hand", with_probe(by_hand, PROBE, "agrees", value)),
            silent("near miss: two minus signs", sample_recorded(_step("neg", None, "neg"))),
            silent("near miss: plain", sample_recorded(_step("mul", 0.5))),
            silent("near miss: minus, and maximize", sample_recorded(_step("neg"), settings={"maximize": True})),
            silent("near miss: a policy gradient", sample_recorded(_policy(), loss=down)),
            silent("near miss: a generator's loss", Run(traces=(negated.traces[0], other))),
            fires("an optimizer that was built anew", Run(traces=negated.traces, idle=sample_recorded().traces)),
            silent("near miss: one added, one subtracted", sample_recorded(_confused())),
            silent("near miss: entropy subtracted", sample_recorded(_bonus())),
        )


def _others(run: Run, trace: Trace) -> bool:
    """Whether another optimizer trains other tensors by a loss of its own, or is there and has not stepped yet."""
    mine, keys = trace.loss, {t.key for t in trace.trained}
    for other in (*run.traces, *run.idle):
        theirs = other.loss
        same = mine is not None and theirs is not None and mine.first == theirs.first and len(mine) == len(theirs)
        if other is not trace and not same and keys.isdisjoint(t.key for t in other.trained):
            return True
    return False


def _sight(term: Term, ascends: bool, beside: bool, trace: Trace) -> Sight:
    op = term.source
    assert isinstance(op, Op)
    falls = trace.loss is not None and trace.loss.last < min(0.0, trace.loss.first)
    how = "the optimizer has maximize=True" if ascends else "it is negated on its way to backward"
    return Sight(
        op=op,
        message=f"{op.kind} at {at(op)} is made larger by the updates, not smaller: {how}",
        evidence=(
            Evidence("factor with which it goes into what is minimised", -term.factor if ascends else term.factor, 0),
        ),
        severity=Severity.ERROR if not beside else Severity.WARNING if falls else Severity.INFO,
        certain=not beside,
    )


def _ce(step: SampleGraph, name: str = "head") -> int:
    logits = step.linear(step.leaf("input", "x", 8, 6), name, 10)
    return step.loss("cross_entropy", logits, step.leaf("target", "", 8, dtype="int64"))


def _step(*calls: str | float | None) -> StepGraph:
    """Cross-entropy, then calls, each with its number: "mul", -1."""
    step = SampleGraph()
    loss = _ce(step)
    for name, number in zip(calls[::2], (*calls[1::2], None), strict=False):
        loss = step.like(f"{T}{name}", loss, arguments={} if number is None else {"other": number})
    return step.graph(loss)


def _policy() -> StepGraph:
    """-(log-probability of the action, by cross_entropy, times the advantage).mean()"""
    step = SampleGraph()
    logits = step.linear(step.leaf("input", "x", 8, 6), "head", 10)
    named = {"input": logits, "target": step.leaf("target", "", 8, dtype="int64")}
    costs = step.call(F + "cross_entropy", tensors=named, shape=(8,), arguments={"reduction": "none"})
    gain = step.like(T + "mul", step.like(T + "neg", costs), step.leaf("constant", "", 8))
    return step.graph(step.call(T + "mean", step.like(T + "neg", gain), shape=()))


def _confused() -> StepGraph:
    step = SampleGraph()
    return step.graph(step.like(T + "sub", _ce(step), _ce(step, "domain")))


def _bonus() -> StepGraph:
    step = SampleGraph()
    entropy = step.call(T + "sum", step.linear(step.leaf("input", "x", 8, 6), "policy"), shape=())
    return step.graph(step.like(T + "sub", _ce(step), entropy))
