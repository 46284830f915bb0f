"""loss-reduction."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.reduction import Reduction, reduction
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run
from whyloss.core.step_graph import Leaf, Op, StepGraph, Value
from whyloss.rules.curve.loss_diverging import LossDiverging
from whyloss.rules.curve.loss_nonfinite import LossNonfinite
from whyloss.rules.rule import Example, Rule, fires, silent, threshold
from whyloss.rules.update.lr_too_high import LrTooHigh

SCALED = ("SGD", "ASGD")  # whose step is proportional to the gradient


@dataclass(frozen=True)
class LossReduction(Rule):
    """The loss is a sum where a mean is meant, or a mean that is divided by the number of examples again.

    ## What it detects
    In a recorded step, how the loss was made one number. A mean that is divided by the size of the batch, with one
    backward pass an update; or a sum over the batch that nothing divides, in a run whose loss grows. Both with an
    optimizer whose step is as large as the gradient; to Adam the scale of a loss is nothing.
    ## Why it matters
    The rate acts as if it were divided or multiplied by the number of examples, and changes with the batch size.
    ## What else looks like this
    Losses that are summed by choice, with a rate that suits; the division by the number of micro-batches, in gradient
    accumulation; a last batch that is smaller. None is reported.
    ## What to do
    Average once: `reduction="mean"` and nothing after it, or `reduction="sum"` divided by the number of examples.
    """

    name = "loss-reduction"
    boundary = Boundary.OBJECTIVE
    explains = (
        *("lr-too-high", "lr-too-low", "loss-diverging", "loss-nonfinite", "exploding-gradient", "loss-flat"),
        *("loss-at-baseline", "not-converged", "plateau-high", "clip-too-small", "gradient-overflow", "dead-relu"),
        "nonfinite-forward",
    )
    explained_by = ("input-unscaled", "target-unscaled")
    change = 'Average once over the batch: reduction="mean" and no division after it.'
    verify = "Halve the batch size: the loss of the first step stays about the same."

    least: int = threshold(4, unit="examples", why="a rate that is off by less is not what keeps a run from learning")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            found = [r for graph in trace.graphs if (r := reduction(graph)) is not None]
            if not found:
                yield self.skipped("needs a recorded step whose loss is one term, scaled by numbers only")
            else:
                yield self._judge(run, trace, found[0])

    def _judge(self, run: Run, trace: Trace, made: Reduction) -> Outcome:
        size = made.examples
        scaled = trace.optimizer in SCALED and size >= self.least
        if made.kind == "mean" and size > 1 and made.divisor in (size, made.elements) and _once(trace):
            severity = Severity.WARNING if scaled and ends_poorly(trace) else Severity.INFO
            what = f"the loss is the mean over {made.elements} and is divided by {made.divisor:.0f} again"
            return self._found(trace, made, severity, f"{what}: the rate acts as if it were that much lower")
        if made.kind == "sum" and made.divisor == 1 and scaled and self._grows(run, trace):
            what = f"the loss is a sum over {made.elements}, divided by nothing"
            return self._found(trace, made, Severity.WARNING, f"{what}: the rate acts as if it were that much higher")
        return self.passed(f"the loss is a {made.kind} over {made.elements}, divided by {made.divisor:.4g}")

    def _found(self, trace: Trace, made: Reduction, severity: Severity, message: str) -> Finding:
        op = made.divided or made.op
        return self.finding(
            message,
            Evidence(f"{made.kind} over", made.elements, None, "elements"),
            Evidence("divided by", made.divisor, 1.0 if made.kind == "mean" else made.examples, ""),
            Evidence("optimizer", trace.optimizer),
            severity=severity,
            place=replace(op.place, op=op.name) if op.place.file else Place(op=op.name),
        )

    def _grows(self, run: Run, trace: Trace) -> bool:
        """Whether the rate is seen to be too high, or the loss to grow, and no limit is set to the gradient."""
        limit = trace.signal("clip/limit")
        if limit is not None and np.isfinite(limit.last):
            return False
        alone = replace(run, traces=(trace,))
        rules = (LrTooHigh(), LossDiverging(), LossNonfinite())
        return any(isinstance(o, Finding) and o.severity.alarm for rule in rules for o in rule.check(alone))

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(graph: StepGraph, optimizer: str = "SGD", **changes: object) -> Run:
            return sample_run(graphs=(graph,), optimizer=optimizer, **changes)  # type: ignore[arg-type]

        stuck, up = flat(200), np.geomspace(2.3, 1e9, 200)
        twice, summed, once = _graph("mean", 32), _graph("sum", None), _graph("mean", None)
        return (
            fires("a mean divided by the batch size, SGD", run(twice, loss=stuck), Severity.WARNING),
            fires("a sum that diverges, SGD", run(summed, loss=up), Severity.WARNING),
            silent("near miss: a mean divided again, Adam", run(twice, "Adam", loss=stuck)),
            silent("near miss: a sum by choice", run(summed)),
            silent("near miss: a sum that diverges, Adam", run(summed, "Adam", loss=up)),
            silent("near miss: accumulated micro-batches", run(twice, loss=stuck, signals={"backwards": 32.0})),
            silent("near miss: a sum divided once", run(_graph("sum", 32), loss=up)),
            silent("near miss: a mean that diverges", run(once, loss=up)),
        )


def _once(trace: Trace) -> bool:
    backwards = trace.signal("backwards")
    return backwards is not None and float(np.nanmax(backwards.high)) == 1.0


def _graph(how: str, divisor: int | None) -> StepGraph:
    """32 examples, ten classes."""
    place = Place(file="train.py", line=21, source="loss = criterion(model(x), y)")
    shapes = {0: (32, 10), 1: (32,), 2: (), 3: ()}
    values = {
        n: Value(shape=s, dtype="int64" if n == 1 else "float32", requires_grad=n != 1) for n, s in shapes.items()
    }
    leaves = (Leaf(value=0, role="input", name="x"), Leaf(value=1, role="target"))
    loss = Op(
        name="torch.nn.functional.cross_entropy",
        tensors={"input": 0, "target": 1},
        outputs=(2,),
        arguments={"reduction": how},
        place=place,
    )
    if divisor is None:
        return StepGraph(ops=(loss,), values=values, leaves=leaves, losses=(2,))
    divided = Op(name="torch.Tensor.div", tensors={"input": 2}, outputs=(3,), arguments={"other": divisor}, place=place)
    return StepGraph(ops=(loss, divided), values=values, leaves=leaves, losses=(3,))
