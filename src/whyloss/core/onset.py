"""Where a run first held a NaN or an infinity, and whether it grew towards it."""

from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Severity
from whyloss.core.run import Run, Tensor, Trace
from whyloss.core.series import Series, Steps, absent, first_nonfinite, not_observed

LAST = 5  # samples before the onset in which the growth must show


@dataclass(frozen=True)
class Onset:
    """`loss`, `gradient`: the first update at which each was non-finite; None: never."""

    loss: int | None
    gradient: int | None
    tensors: tuple[Tensor, ...]  # whose gradients were not finite at `gradient`
    others: int  # how many tensors had a finite one there
    grew: str  # what grew on the way there, with figures; empty: nothing did
    recovered: bool  # most losses after it are finite again, the last one too

    @property
    def step(self) -> int:
        return min(s for s in (self.loss, self.gradient) if s is not None)

    @property
    def backward(self) -> bool:
        """The loss was still finite when a gradient no longer was."""
        return self.gradient is not None and (self.loss is None or self.gradient < self.loss)

    @property
    def severity(self) -> Severity:
        """Recovered and no gradient was touched: the training went on unharmed."""
        if not self.recovered:
            return Severity.ERROR
        return Severity.INFO if self.gradient is None else Severity.WARNING


def onset(run: Run, trace: Trace, times: float) -> Onset | None:
    """`times`: what counts as growth. None where every loss and gradient was finite.

    Updates that a loss scaler left out do not count.
    """
    left_out = _left_out(run, trace)
    loss = None if trace.loss is None else first_nonfinite(_without(trace.loss, left_out))
    gradient, bad, good = _gradients(trace, left_out)
    if loss is None and gradient is None:
        return None
    found = Onset(loss, gradient, bad, good, "", False)
    return Onset(loss, gradient, bad, good, growth(trace, found.step, times), _recovered(trace, found.step))


def growth(trace: Trace, step: int, times: float) -> str:
    """What rose to `times` its level in the last samples up to `step`: the loss, the gradient or a weight."""
    for name, series in (("loss", trace.loss), ("gradient norm", trace.signal("grad/total"))):
        before = _before(series, step)
        if len(before) > 1 and (level := _level(before)) > 0 and before[-LAST:].max() > times * level:
            return f"the {name} rose from {before[0]:.3g} to {before[-LAST:].max():.3g}"
    for t in trace.trained:
        before = _before(trace.signal(f"weight/norm[{t.name}]"), step)
        if len(before) > 1 and before[0] > 0 and before[-1] > times * before[0]:
            return f"the norm of {t.name} rose from {before[0]:.3g} to {before[-1]:.3g}"
    return ""


def _level(values: np.ndarray) -> float:
    """The median of all, or the first where they are too few for one."""
    return float(np.median(np.abs(values))) if len(values) > 2 * LAST else abs(float(values[0]))


def _before(series: Series | None, step: int) -> np.ndarray:
    if series is None:
        return np.zeros(0)
    finite = series.finite
    return np.asarray(finite.values[finite.steps <= step])


def _left_out(run: Run, trace: Trace) -> Steps:
    steps = [s for index, s in run.skipped_updates if index == trace.index]
    fused = trace.signal("found-inf")
    if fused is not None:
        steps += fused.steps[fused.values > 0].tolist()
    return np.array(sorted(steps), dtype=np.int64)


def _without(series: Series, steps: Steps) -> Series:
    keep = ~np.isin(series.steps, steps)
    return Series(series.steps[keep], series.values[keep], series.low[keep], series.high[keep])


def _gradients(trace: Trace, left_out: Steps) -> tuple[int | None, tuple[Tensor, ...], int]:
    held = tuple(t for t in trace.trained if f"grad/norm[{t.name}]" in trace.every.columns)
    steps, norms = trace.matrix("grad/norm", held)
    if not norms.size:
        return None, (), 0
    bad = ~np.isfinite(norms) & ~not_observed(norms) & ~absent(norms) & ~np.isin(steps, left_out)[:, None]
    rows = np.flatnonzero(bad.any(axis=1))
    if not len(rows):
        return None, (), 0
    row = rows[0]
    return (
        int(steps[row]),
        tuple(t for t, b in zip(held, bad[row], strict=True) if b),
        int(np.isfinite(norms[row]).sum()),
    )


def _recovered(trace: Trace, step: int) -> bool:
    after = None if trace.loss is None else trace.loss.since(step + 1)
    return after is not None and len(after.finite) > 0.5 * len(after) and bool(np.isfinite(after.last))
