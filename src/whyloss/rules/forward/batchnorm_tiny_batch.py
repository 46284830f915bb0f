"""batchnorm-tiny-batch."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.feed import eval_loss_name
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.learning import ends_poorly, learned_from_input
from whyloss.core.levels import own_loss, says_nothing
from whyloss.core.modes import ModeCall, mode_calls
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat
from whyloss.core.sample_graph import F, SampleGraph
from whyloss.core.series import fall
from whyloss.core.step_graph import StepGraph
from whyloss.rules.recorded import place_of, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class BatchnormTinyBatch(Rule):
    """Batch normalisation takes its statistics from two to four values.

    ## What it detects
    Batch normalisations that normalise each channel over `most` values or fewer (examples times positions) in most of
    the recorded steps, in a run that suffers: it does not learn from its inputs, ends above half of the loss of a
    constant prediction, or its loss in evaluation mode is `gap` times that of training.
    ## Why it matters
    Of two values one becomes +1 and the other −1, whatever they were. An output depends on its neighbours in the batch
    more than on its input, and the running statistics describe nothing that the layer saw in training.
    ## What else looks like this
    Small batches of images, which have many positions; a last batch of few examples once an epoch; normalisation in
    evaluation mode. A run that learns well all the same is an info.
    ## What to do
    Use larger batches, or GroupNorm or LayerNorm, which do not look across examples. Accumulating gradients does not
    help: each micro-batch is normalised on its own.
    """

    name = "batchnorm-tiny-batch"
    boundary = Boundary.FORWARD
    explains = (
        *("train-eval-gap", "plateau-high", "underfitting", "loss-noisy", "not-converged", "loss-flat"),
        *("loss-at-baseline", "batch-leak", "lr-too-low", "loss-oscillating", "overfitting"),
    )
    change = "Use larger batches, or GroupNorm or LayerNorm in place of batch normalisation."
    verify = "Run again: each channel is normalised over 16 values and more, and the losses of both modes agree."

    most: int = threshold(
        4, unit="values a channel", why="the std of four values is off by 40 %; of 16, which train well, by 18 %"
    )
    gap: float = threshold(2.0, unit="times the training loss", why="healthy runs were below 1.3 on the same data")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            if not trace.graphs:
                yield self.skipped("no step of this optimizer was recorded")
                continue
            norms = _norms(trace)
            counts = {name: int(np.median([c.values or 0 for c in found])) for name, found in norms.items()}
            tiny = {name: n for name, n in counts.items() if n <= self.most}
            if tiny:
                yield self._found(run, trace, tiny, norms)
            else:
                least = min(counts.values(), default=None)
                what = f"at least {least} values a channel" if least is not None else "no batch normalisation"
                yield self.passed(f"{what} in {len(trace.graphs)} recorded steps")

    def _found(self, run: Run, trace: Trace, tiny: dict[str, int], norms: dict[str, list[ModeCall]]) -> Finding:
        name, count = min(tiny.items(), key=lambda item: item[1])
        harm = self._harm(run, trace)
        more = f" and {len(tiny) - 1} more" if len(tiny) > 1 else ""
        return self.finding(
            f"{name}{more} normalises each channel over {count} values, {harm or 'yet it learns'}",
            Evidence("values that a channel is normalised over", count, self.most + 1, "", _steps(trace)),
            severity=Severity.WARNING if harm else Severity.INFO,
            place=place_of(norms[name][0].op),
        )

    def _harm(self, run: Run, trace: Trace) -> str:
        own = own_loss(trace)
        result = fall(own) if own is not None else None
        for e in run.evaluations:
            series = run.metrics.get(eval_loss_name(e.index))
            if series is None or e.training or result is None or not len(series.finite):
                continue
            late = float(np.median(series.finite.values[len(series.finite) // 2 :]))
            if late > self.gap * result.end > 0:
                return f"and the loss is {late:.3g} in evaluation mode, {result.end:.3g} in training"
        if says_nothing(run, trace) or not (learned_from_input(trace) is False or ends_poorly(trace)):
            return ""
        return "and the run does not learn well"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        two, four, many = _step(2), _step(4), _step(16)
        bad, good = flat(100), falling(100)
        return (
            fires("two examples", sample_recorded(two, loss=bad), Severity.WARNING),
            fires("four examples, a poor end", sample_recorded(four, loss=falling(100, 2.3, 1.6)), Severity.WARNING),
            silent("near miss: four, and it learns", sample_recorded(four, loss=good)),
            silent("near miss: sixteen", sample_recorded(many, loss=bad)),
            silent("near miss: two images of 8 by 8", sample_recorded(_step(2, 8, 8), loss=bad)),
            silent("near miss: a last batch of two", sample_recorded(many, many, many, two, loss=bad)),
            silent("near miss: in evaluation mode", sample_recorded(_step(2, on=False), loss=bad)),
        )


def _norms(trace: Trace) -> dict[str, list[ModeCall]]:
    """The batch normalisations that use the statistics of the batch, by module."""
    found: dict[str, list[ModeCall]] = {}
    for graph in trace.graphs:
        for call in mode_calls(graph):
            if call.norm and call.on:
                found.setdefault(call.name, []).append(call)
    return found


def _steps(trace: Trace) -> tuple[int, ...]:
    return tuple(g.step for g in trace.graphs)


def _step(n: int, *positions: int, on: bool = True) -> StepGraph:
    step = SampleGraph()
    x = step.leaf("input", "x", n, 6, *positions)
    h = step.like(F + "batch_norm", x, module="bn", arguments={"training": on})
    h = step.call("torch.flatten", h, shape=(n, 6))
    out = step.linear(h, "head", 3)
    return step.graph(step.loss("cross_entropy", out, step.leaf("target", "", n, dtype="int64")))
