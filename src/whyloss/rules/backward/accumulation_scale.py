"""accumulation-scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.levels import objective, says_nothing
from whyloss.core.movement import ratios, weights
from whyloss.core.order import Order, accumulates, divided, share_of_updates
from whyloss.core.run import Call, Run, Trace
from whyloss.core.sample import ORDER, falling, flat, sample_run, sample_tensors
from whyloss.core.step_graph import StepGraph
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class AccumulationScale(Rule):
    """The mean losses of several micro-batches are added up as if each were the loss of the whole batch.

    ## What it detects
    Several backward passes of one line before each step, each of the mean of its own micro-batch, and neither the loss
    nor the gradients are divided by their number: the gradient is so many times the mean. Or micro-batches in which
    very different numbers of targets count, while each weighs the same.
    ## Why it matters
    For SGD the rate is multiplied by the number of micro-batches. With unequal numbers of targets a target in a short
    micro-batch weighs many times as much as one in a long.
    ## What else looks like this
    Losses divided by their number, gradients divided by hand, sums over examples; several losses of one forward pass.
    Not reported. Under Adam, which divides by the gradient's own size, and where no harm is seen, it is an info.
    ## What to do
    Divide each loss by the number of micro-batches; with unequal numbers of targets, sum and divide by all of them.
    """

    name = "accumulation-scale"
    boundary = Boundary.BACKWARD
    explains = (
        *("lr-too-high", "loss-diverging", "loss-nonfinite", "loss-spikes", "loss-oscillating", "exploding-gradient"),
        *("gradient-overflow", "nonfinite-forward", "nonfinite-backward", "loss-flat", "loss-at-baseline", "dead-relu"),
        *("plateau-high", "underfitting", "clip-too-small", "loss-noisy"),
    )
    change = "Divide each loss by the number of micro-batches before backward()."
    verify = "Run again: grad/total is near that of one micro-batch, and the loss falls."

    share: float = threshold(0.9, unit="of the updates", why="the loop's own order; the last window may be short")
    same: float = threshold(0.02, unit="times", why="bfloat16 losses agree with their recomputed value within it")
    ratio: float = threshold(
        0.05, unit="of a weight's norm", why="fifty times the customary 1e-3: below it no step was too long"
    )
    uneven: float = threshold(
        2.0, unit="times", why="a target that weighs twice as much as another is worth knowing; less is customary"
    )
    very: float = threshold(
        10.0, unit="times", why="30 turned the gradient by 49 degrees, as much as another batch would"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            yield self._judge(run, trace)

    def _judge(self, run: Run, trace: Trace) -> Outcome:
        passes = trace.signal("backwards")
        k = float(np.median(passes.values)) if passes is not None and len(passes) else 0.0
        if k < 2 or (share_of_updates(trace, accumulates) or 0.0) < self.share:
            return self.passed("no update adds up the backward passes of one line")
        op, factor = objective(trace), _factor(trace)
        if op is None or op.reduction != "mean" or factor is None:
            return self.skipped("needs one loss function of torch with mean reduction in each backward pass")
        if any(_shared(graph) for graph in trace.graphs):
            return self.passed("the backward passes of an update are of one forward pass")
        given = divided(trace)
        if abs(factor - 1) <= self.same and (given is None or abs(given - 1) <= self.same):
            return self._undivided(run, trace, k, sure=given is not None)
        return self._uneven(trace, k) or self.passed(f"{k:.0f} losses an update go in with a factor of {factor:.3g}")

    def _undivided(self, run: Run, trace: Trace, k: float, *, sure: bool) -> Outcome:
        step = ratios(trace, weights(trace))
        largest = float(step.high.max()) if step is not None else 0.0
        harm = sure and largest > self.ratio and "SGD" in trace.optimizer
        harm = harm and not says_nothing(run, trace) and (_blown(trace) or ends_poorly(trace))
        return self.finding(
            f"each update adds up {k:.0f} mean losses undivided: the gradient is {k:.0f} times that of their mean"
            + ("" if harm else "; no harm is seen"),
            Evidence("backward passes an update", k, None, "", (0, trace.updates - 1)),
            Evidence("factor of each mean loss", 1.0, 1 / k),
            Evidence("‖Δθ‖ / ‖θ‖ of the middle weight", largest, self.ratio, "of the norm"),
            severity=Severity.WARNING if harm else Severity.INFO,
            place=_place(trace),
            certain=sure,
        )

    def _uneven(self, trace: Trace, k: float) -> Outcome | None:
        fewest, most = trace.signal("target/fewest"), trace.signal("target/most")
        if fewest is None or most is None or len(fewest) != len(most):
            return None
        spread = float(np.median(most.values / np.maximum(fewest.values, 1.0)))
        if spread < self.uneven:
            return None
        return self.finding(
            f"the {k:.0f} micro-batches of an update weigh the same, though in the middle update one has {spread:.3g} "
            f"times as many targets as another: a target's weight depends on its micro-batch",
            Evidence("most over fewest targets in a micro-batch", spread, self.very, "times", (0, trace.updates - 1)),
            Evidence("fewest targets", float(np.median(fewest.values)), None, "targets"),
            Evidence("most targets", float(np.median(most.values)), None, "targets"),
            severity=Severity.WARNING if spread >= self.very else Severity.INFO,
            place=_place(trace),
            certain=True,
            change="Sum the losses of all targets and divide by the number of targets of the whole update.",
            verify="Run again: the gradient is that of one large batch with the same examples.",
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        window: dict[str, Any] = {"order": (ORDER[0], *ORDER[1:2] * 8, ORDER[2])}
        large = {f"update/norm[{t.name}]": 1.0 for t in sample_tensors()}
        loss = flat(60, 40.0)
        eight = {"backwards": 8.0, "objective/value": loss, "grad/summed": 1.0, "grad/total": 1.0}
        sgd: dict[str, Any] = {"optimizer": "SGD", "loss": loss} | window
        lengths = {"backwards": 8.0, "target/fewest": 3.0, "target/most": 60.0, "objective/value": 8 * falling(200)}
        two = (ORDER[0], ORDER[1], Call("backward", "train.py", 30), ORDER[2])
        return (
            fires("eight undivided under SGD, far off", sample_run(signals=eight | large, **sgd), Severity.WARNING),
            fires("3 and 60 targets", sample_run(signals=lengths, **window), Severity.WARNING),
            silent("near miss: under Adam", sample_run(signals=eight | large, **sgd | {"optimizer": "Adam"})),
            silent("near miss: SGD with small steps", sample_run(signals=eight, **sgd)),
            silent("near miss: divided by 8", sample_run(signals=eight | large | {"objective/value": 8 * loss}, **sgd)),
            silent("near miss: gradients divided", sample_run(signals=eight | large | {"grad/total": 0.125}, **sgd)),
            silent("near miss: other lines", sample_run(signals=eight | large, **sgd | {"order": two})),
            silent("near miss: one pass", sample_run(signals=eight | large | {"backwards": 1.0}, **sgd)),
            silent("near miss: 50 and 60 targets", sample_run(signals=lengths | {"target/fewest": 50.0}, **window)),
        )


def _factor(trace: Trace) -> float | None:
    """With which each micro-batch's mean loss goes into its backward pass."""
    loss, value = trace.loss, trace.signal("objective/value")
    if loss is None or value is None:
        return None
    _, at, where = np.intersect1d(loss.steps, value.steps, return_indices=True)
    with np.errstate(all="ignore"):
        found = loss.values[at] / value.values[where]
    found = found[np.isfinite(found)]
    return float(np.median(found)) if len(found) else None


def _shared(graph: StepGraph) -> bool:
    """Whether the losses of a step come from one forward pass: a call with a weight that stands behind several."""
    roots = dict.fromkeys(graph.flow.roots)
    behind = [{k for k, _ in graph.flow.behind(root) if k >= 0 and graph._is_weighted(k)} for root in roots]
    return any(a & b for i, a in enumerate(behind) for b in behind[:i])


def _blown(trace: Trace) -> bool:
    return trace.loss is not None and len(trace.loss.finite) < len(trace.loss)


def _place(trace: Trace) -> Place:
    call = next((c for order in trace.orders for c in _backwards(order)), Call("backward"))
    return call.place


def _backwards(order: Order) -> list[Call]:
    return [c for c in order if c.what == "backward"]
