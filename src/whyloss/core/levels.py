"""What the loss of a trace is worth: its own level, and the levels that a prediction blind to the input would reach."""

import math
from dataclasses import dataclass

import numpy as np

from whyloss.core.baseline import uniform_cross_entropy
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.series import Series

CROSS_ENTROPY = ("cross_entropy", "nll_loss")
BINARY = ("binary_cross_entropy", "binary_cross_entropy_with_logits")
SAME = 1e-3  # of the value: the loss of float32 and of bfloat16 recomputed in float32 agree within it


@dataclass(frozen=True)
class Baseline:
    """The loss of a constant prediction, and in words which one."""

    value: float
    name: str


def objective(trace: Trace) -> Objective | None:
    """The one loss op that the whole loss comes from; None where there is none, or several."""
    found = {(o.kind, o.classes) for o in trace.objectives}
    return trace.objectives[0] if len(found) == 1 and all(o.single for o in trace.objectives) else None


def own_loss(trace: Trace) -> Series | None:
    """The loss op's own mean, without other terms and factors: `loss/train` at every update where that is the same."""
    op = objective(trace)
    value, loss = trace.signal("objective/value"), trace.loss
    if op is None:
        return None
    if value is None:
        return loss if op.direct and op.reduction == "mean" else None
    return loss if loss is not None and _same(value, loss) else value


def _same(value: Series, loss: Series) -> bool:
    _, at, where = np.intersect1d(loss.steps, value.steps, return_indices=True)
    a, b = loss.values[at], value.values[where]
    finite = np.isfinite(a) & np.isfinite(b)
    close = np.abs(a - b)[finite] <= SAME * np.maximum(np.abs(a), np.abs(b))[finite]
    return len(close) > 0 and bool(np.mean(close) >= 0.9)


def baselines(trace: Trace) -> tuple[Baseline, ...]:
    """For the loss op of a trace, highest first: uniform predictions, then the best constant one. Empty: not known."""
    op = objective(trace)
    if op is None:
        return ()
    found: list[Baseline] = []
    if op.kind in CROSS_ENTROPY and op.classes is not None and op.classes > 1:
        found.append(Baseline(uniform_cross_entropy(op.classes), f"ln {op.classes}, the loss of uniform predictions"))
    if op.kind in BINARY:
        found.append(Baseline(math.log(2), "ln 2, the loss of predicting one half"))
    if op.kind in CROSS_ENTROPY + BINARY:
        found += _last(trace, "target/entropy", "the label entropy, the loss of predicting the class shares")
    if op.kind == "mse_loss":
        found += _last(trace, "target/variance", "the variance of the targets, the loss of predicting their mean")
    return tuple(sorted(found, key=lambda b: -b.value))


def _last(trace: Trace, signal: str, name: str) -> list[Baseline]:
    """Pooled figures get better with every batch: the last one counts. A zero says nothing to be held against."""
    series = trace.signal(signal)
    good = series is not None and math.isfinite(series.last) and series.last > 1e-6
    return [Baseline(series.last, name)] if series is not None and good else []


def says_nothing(run: Run, trace: Trace) -> str:
    """Why the level of this loss doesn't say how good the model is; empty where it does."""
    loss = trace.loss
    if loss is None:
        return "needs the loss"
    finite = loss.finite
    if len(finite) and bool(np.any(finite.low < 0)) and bool(np.any(finite.high > 0)):
        return "the loss takes both signs, as a policy gradient's does: its level says nothing"
    if alternates(run, trace):
        return "another optimizer trains other tensors by another loss: the two may hold each other in balance"
    return ""


def alternates(run: Run, trace: Trace) -> bool:
    """Whether another optimizer trains other tensors at the same time by another loss, as in adversarial training:
    such losses hold each other in balance, and neither has to fall."""
    return any(
        _apart(trace, o) and _meanwhile(trace, o) and not _one_loss(trace, o) for o in run.traces if o is not trace
    )


def _apart(a: Trace, b: Trace) -> bool:
    return not {t.key for t in a.trained} & {t.key for t in b.trained}


def _meanwhile(a: Trace, b: Trace) -> bool:
    """By the clock; where there is none, by the tensors that one reaches and the other trains."""
    x, y = a.signal("seconds"), b.signal("seconds")
    if x is not None and y is not None:
        return x.first < y.last and y.first < x.last
    reached = {t.key for t in a.tensors} & {t.key for t in b.trained} | {t.key for t in b.tensors} & {
        t.key for t in a.trained
    }
    return bool(reached)


def _one_loss(a: Trace, b: Trace) -> bool:
    x, y = a.loss, b.loss
    return x is not None and y is not None and np.array_equal(x.values, y.values, equal_nan=True)
