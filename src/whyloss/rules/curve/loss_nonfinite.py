"""loss-nonfinite."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Place, Severity
from whyloss.core.location import Located, Phase
from whyloss.core.onset import Onset, onset
from whyloss.core.reach import depth, listed
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, sample_run
from whyloss.core.series import NOT_OBSERVED
from whyloss.rules.located import GROWN, located, sample_located
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

ONE_STEP = ("data-nonfinite", "nonfinite-forward", "nonfinite-backward", "gradient-overflow", "input-unscaled")


@dataclass(frozen=True)
class LossNonfinite(Rule):
    """The loss, or a gradient that the optimizer was given, is NaN or infinite.

    ## What it detects
    The first update at which the loss was not finite, or the norm of a gradient was not, and which of them came first.
    It also says whether loss, gradients or weights had grown on the way there, or all were sane one update earlier:
    then it arose in one step, and a smaller rate will not prevent it.
    ## Why it matters
    One update with a non-finite gradient makes the weights non-finite, and nothing that follows can repair them.
    ## What else looks like this
    Updates that a loss scaler left out (not reported); a batch without any valid target, whose loss is 0/0 while the
    gradients are finite (info, where the later losses are finite); −inf in an attention mask (not looked at here).
    ## What to do
    Where the first non-finite value was located, its cause stands above this: data-nonfinite, nonfinite-forward,
    nonfinite-backward or gradient-overflow. An update that made a weight non-finite is named here: its rate, its eps.
    Where nothing was located, the step could not be played again: the report says why.
    """

    name = "loss-nonfinite"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ONE_STEP + GROWN
    change = (
        "Find the operation that gives the first non-finite value (it could not be located): look at log, division, "
        "sqrt and norm at 0, exp, and at that batch; torch.autograd.set_detect_anomaly(True) names a backward node."
    )
    verify = "Run again: the loss and every grad/norm stay finite past that update."

    growth: float = threshold(10.0, unit="times its level", why="losses and gradients of sane batches scatter by less")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            yield from self._check(run, trace)

    def _check(self, run: Run, trace: Trace) -> Iterator[Outcome]:
        if trace.loss is None and trace.signal("grad/total") is None:
            yield self.skipped("needs the loss or the gradients")
            return
        found = onset(run, trace, self.growth)
        if found is None:
            yield self.passed(f"loss and gradients were finite at all {trace.updates} updates")
            return
        where = located(run, trace)
        if where is not None and where.location.phase is Phase.UPDATE:
            yield self._by_update(where, found)
            return
        yield self.finding(
            f"{_what(trace, found)}; {_how(found)}",
            *_evidence(trace, found),
            severity=found.severity,
            place=_place(trace, found),
            first_step=found.step,
            certain=True,
            explained_by=ONE_STEP + GROWN if found.grew or found.step == 0 else ONE_STEP,
            change=self.change if where is None else "See where it arose: the first non-finite value was located.",
        )

    def _by_update(self, where: Located, found: Onset) -> Finding:
        """All gradients were finite: the optimizer itself made a weight non-finite, one update earlier."""
        return self.finding(
            where.location.text[:1].lower() + where.location.text[1:].rstrip("."),
            *(Evidence("the weight", str(where.location.became), "finite", "", (where.step,)),),
            severity=found.severity,
            place=where.location.place,
            first_step=max(0, where.step - 1),
            certain=True,
            symptom=False,
            explained_by=GROWN if found.grew else (),
            change="Look at what the optimizer was given: its rate, eps and betas, and the dtype of the weights.",
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        tail = np.r_[falling(60), np.full(60, np.nan)]
        grads = np.where(np.arange(120) < 59, 0.1, np.nan)
        bad = {f"grad/norm[{layer}.weight]": grads for layer in ("fc1", "fc2")}
        lone = np.where(np.arange(120) == 50, np.nan, falling(120))
        return (
            fires("NaN from update 60 on", sample_run(loss=tail), Severity.ERROR),
            fires("infinite at the first update", sample_run(loss=np.full(50, np.inf)), Severity.ERROR),
            fires("gradient NaN one update before the loss", sample_run(loss=tail, signals=bad), Severity.ERROR),
            fires("an update with a rate of NaN", sample_located(Phase.UPDATE), Severity.ERROR),
            silent("near miss: one loss without a valid target, then finite again", sample_run(loss=lone)),
            silent("near miss: a loss that nobody looked at", sample_run(loss=[*falling(60), *[NOT_OBSERVED] * 9])),
            silent("near miss: huge but finite", sample_run(loss=falling(120, 1e37, 1e30))),
        )


def _what(trace: Trace, found: Onset) -> str:
    if not found.backward:
        value = f"{_value_at(trace, found.loss):g}".replace("nan", "NaN")
        lasts = not found.recovered and found.loss != trace.updates - 1
        return f"the loss is {value} " + (f"from update {found.loss} on" if lasts else f"at update {found.loss}")
    later = "never" if found.loss is None else f"only from update {found.loss} on"
    what = f"the gradient norm of {listed(found.tensors)} is non-finite at update {found.gradient}"
    return f"{what}, the loss {later}" + ("" if found.grew else ", so it arose in backward")


def _how(found: Onset) -> str:
    if found.recovered:
        return "the later losses are finite" + (": perhaps only the norm overflowed" if found.loss is None else "")
    if found.step == 0:
        return "it was so before any update"
    return found.grew or "loss and gradients had not grown before: it arose in one step"


def _evidence(trace: Trace, found: Onset) -> Iterator[Evidence]:
    if found.loss is not None:
        yield Evidence("loss", _value_at(trace, found.loss), "finite", "", (found.loss,))
    if found.gradient is not None:
        figures = f"{len(found.tensors)} of {len(found.tensors) + found.others}"
        yield Evidence("tensors with a non-finite gradient norm", figures, "0", "tensors", (found.gradient,))
    steps, norms = trace.matrix("weight/norm", trace.trained)
    before = np.flatnonzero(steps <= found.step)
    if norms.size and len(before):
        state = "finite" if np.isfinite(norms[before[-1]]).all() else "not all finite"
        yield Evidence("weights before the update", state, "finite", "", (int(steps[before[-1]]),))


def _value_at(trace: Trace, step: int | None) -> float:
    loss = trace.loss
    return float("nan") if loss is None or step is None else float(loss.values[np.searchsorted(loss.steps, step)])


def _place(trace: Trace, found: Onset) -> Place:
    """Gradients run from the loss to the input: the tensor latest in the forward pass is nearest to the origin."""
    if found.backward and found.tensors:
        return trace.place_of(max(found.tensors, key=lambda t: depth(trace, t)))
    return trace.loss_place
