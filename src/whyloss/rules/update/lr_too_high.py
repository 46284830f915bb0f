"""lr-too-high."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import BINARY, CROSS_ENTROPY, baselines, objective, own_loss, says_nothing
from whyloss.core.movement import rates, ratios, weights
from whyloss.core.onset import onset
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat, sample_run, sample_tensors
from whyloss.core.saturation import bounded
from whyloss.core.series import Series, fall
from whyloss.rules.recorded import named, sample_recorded, step_through
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LrTooHigh(Rule):
    """The updates are so large that they throw the weights about, and the loss with them.

    ## What it detects
    Two things together. The true update ‖Δθ‖ / ‖θ‖ of the middle weight is above `ratio` at `window` observed updates
    in a row, or above `single` at one. And the loss rose to `jump` times its first value and ends no better than it
    began (after a single one: above half of that), or grew until it was not finite; or it ends no better than it began,
    behind an activation that is flat and was not before the first update. Either alone is not enough.
    ## Why it matters
    Each step lands further from the minimum than it started. Units die, activations saturate, the loss becomes NaN.
    ## What else looks like this
    Large ratios in a run that learns (small networks, the first Adam steps, weights that begin at zero); a loss that
    was off before the first update (loss-off-baseline); an optimizer told to maximise; adversarial and policy-gradient
    losses. None of them is reported here. Gradients that pile up look the same: gradient-not-cleared explains them.
    ## What to do
    Divide the rate by ten. 1e-3 is where to begin for Adam, 1e-2 to 1e-1 for SGD; scale inputs and targets, because the
    highest rate that works falls with the square of their scale.
    """

    name = "lr-too-high"
    boundary = Boundary.UPDATE
    explains = (
        "loss-diverging",
        "loss-nonfinite",
        "exploding-gradient",
        "loss-at-baseline",
        "loss-flat",
        "loss-oscillating",
        "loss-spikes",
        "dead-relu",
        "zero-gradient",
        "vanishing-gradient",
        "saturated-activation",
    )
    explained_by = ("gradient-not-cleared", "loss-reduction", "accumulation-scale", "input-unscaled", "target-unscaled")
    change = "Divide the learning rate by ten, and again if need be; check where a schedule takes it."
    verify = "Run again: update/norm is near a thousandth of weight/norm, and the loss falls from the first updates on."

    ratio: float = threshold(
        0.05, unit="of a weight's norm", why="fifty times the customary 1e-3: it turns in 20 updates"
    )
    window: int = threshold(3, unit="observed updates", why="one large step alone is seen in healthy warm starts")
    single: float = threshold(1.0, unit="of a weight's norm", why="one such update leaves nothing of the old weight")
    jump: float = threshold(2.0, unit="times the first loss", why="the first batch may be half as hard as the others")
    known: float = threshold(
        1.5, unit="times a baseline", why="the same, where the loss of a constant prediction is known"
    )
    better: float = threshold(0.9, unit="of the first loss", why="a run that ends a tenth lower has learned something")
    half: float = threshold(0.5, unit="of the first loss", why="the same, where one update left nothing of the start")
    growth: float = threshold(10.0, unit="times its level", why="losses and gradients of sane batches scatter by less")
    open: float = threshold(0.1, unit="of the largest slope", why="below it the activation was flat from the start")
    shut: float = threshold(0.01, unit="of the largest slope", why="a hundredth of the gradient that came before")
    off: float = threshold(3.0, unit="times ln C", why="beyond it the initialisation is at fault, not the rate")
    squares: float = threshold(1e3, unit="times the variance", why="the same, for squared error on targets off by 30 σ")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            ratio, loss = ratios(trace, weights(trace)), trace.loss
            reason = says_nothing(run, trace)
            if reason or loss is None or ratio is None or not len(loss.finite):
                yield self.skipped(reason or "needs the loss, and the norms of weights and updates")
                continue
            step, large = self._largest(ratio)
            share = self.half if large > self.single else self.better
            trouble = "" if self._excused(trace) else self._trouble(run, trace, loss, share)
            if large <= self.ratio or not trouble:
                what = trouble or "the loss did not rise and stay up"
                yield self.passed(f"the middle update is at most {large:.2g} of its weight's norm; {what}")
                continue
            rate = max((float(r.high.max()) for r in rates(trace)), default=float("nan"))
            yield self.finding(
                f"{trace.optimizer} at a rate of {rate:.3g} moves the middle weight by {large:.2g} times its norm "
                f"in one update, and {trouble}",
                Evidence("‖Δθ‖ / ‖θ‖ of the middle weight", large, self.ratio, "of the norm", (step,)),
                Evidence("highest rate", rate),
                severity=Severity.WARNING,
                place=trace.place,
                first_step=step,
            )

    def _largest(self, ratio: Series) -> tuple[int, float]:
        """The largest ratio that `window` observed updates in a row reach; a single one where it is above `single`."""
        at = int(np.argmax(ratio.values))
        if ratio.values[at] <= self.single and len(ratio) >= self.window:
            lasting = np.lib.stride_tricks.sliding_window_view(ratio.values, self.window).min(axis=1)
            return int(ratio.steps[np.argmax(lasting)]), float(lasting.max())
        return int(ratio.steps[at]), float(ratio.values[at]) if ratio.values[at] > self.single else 0.0

    def _excused(self, trace: Trace) -> bool:
        """Told to go uphill, or off before any update: then the rate is not the first thing that is wrong."""
        own, levels, op = own_loss(trace), baselines(trace), objective(trace)
        limit = self.off if op is not None and op.kind in CROSS_ENTROPY + BINARY else self.squares
        off = own is not None and bool(levels) and own.first > limit * levels[0].value
        return trace.settings.get("maximize") is True or off

    def _trouble(self, run: Run, trace: Trace, loss: Series, share: float) -> str:
        found = onset(run, trace, self.growth)
        if found is not None and not found.recovered:
            return f"{found.grew} until update {found.step} was not finite" if found.step > 0 and found.grew else ""
        result, first, own = fall(loss), loss.finite.first, own_loss(trace)
        if result is None or first <= 0.0 or result.end < share * first:
            return ""
        high = np.lib.stride_tricks.sliding_window_view(loss.finite.values, 2).min(axis=1).max()
        levels = baselines(trace) if own is loss else ()
        limit = self.known * max(first, levels[0].value) if levels else self.jump * first
        if high > limit:
            return f"the loss rose from {first:.4g} to {high:.4g} and ends at {result.end:.4g}"
        shut = [b for b in bounded(trace) if b.hidden and b.at_start > self.open and b.slopes.last < self.shut]
        passes = [f"{named(b.op)} passes on {b.slopes.last:.2g} of the gradient, not {b.at_start:.2g}" for b in shut]
        return f"the loss ends at {result.end:.4g}, where {passes[0]} as before the first update" if shut else ""

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(200)
        large = {f"update/norm[{t.name}]": np.where(steps < 40, 1.0, 1e-3) for t in sample_tensors()}
        thrown = np.r_[2.3, 800.0, falling(48, 300.0, 2.3), flat(150, 2.35)]
        giant = {f"update/norm[{t.name}]": np.where(steps < 1, 16.0, 1e-3) for t in sample_tensors()}
        poor = np.r_[2.3, 40.0, falling(198, 30.0, 1.6)]
        blown = np.r_[np.geomspace(2.0, 1e20, 40), np.full(160, np.nan)]
        sudden = np.r_[falling(40), np.full(160, np.nan)]
        return (
            fires("thrown to 800, then stuck above ln 10", sample_run(loss=thrown, signals=large), Severity.WARNING),
            fires("one update of 4 times the norm, then a poor level", sample_run(loss=poor, signals=giant)),
            fires("grows to 1e20, then NaN", sample_run(loss=blown, signals=large)),
            fires("at the start's level, its activations flat since", _flattened(0.999, large)),
            silent("near miss: as flat after customary updates", _flattened(0.999, {})),
            silent("near miss: activations that are not flat", _flattened(0.6, large)),
            fires("learned, then a growing rate", sample_run(loss=np.r_[falling(100), flat(100, 7.0)], signals=large)),
            silent("near miss: large updates in a run that learns", sample_run(signals=large)),
            silent("near miss: the loss jumps at customary updates", sample_run(loss=thrown)),
            silent("near miss: NaN in one step", sample_run(loss=sudden, signals=large)),
            silent(
                "near miss: 46 before the first update",
                sample_run(loss=np.r_[46.0, flat(199, 99.0)], signals=large),
            ),
            silent("near miss: told to maximise", sample_run(loss=thrown, signals=large, settings={"maximize": True})),
            silent("near miss: a policy gradient", sample_run(loss=np.sin(steps) * steps, signals=large)),
            silent("near miss: stuck at ln 10 from the start", sample_run(loss=flat(200), signals=large)),
        )


def _flattened(std: float, signals: Mapping[str, Any]) -> Run:
    """Of a tanh whose values come to spread by `std`, in a run that ends where it began."""
    return sample_recorded(step_through(std=0.5), step_through(std=std), loss=flat(200), signals=signals)
