"""exploding-gradient."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.clipping import unclipped
from whyloss.core.depth import profile, sample_deep, slope, weight_norm
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.levels import baselines, own_loss
from whyloss.core.progress import learned
from whyloss.core.run import Call, Run, Trace
from whyloss.core.sample import ORDER, falling, flat, sample_run
from whyloss.core.series import Series, first_nonfinite
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

KAIMING = 1.2 * 2**0.5  # of 1/√fan_in: weights above it enlarge what passes them

RECURRENT = ("RNN", "LSTM", "GRU")


@dataclass(frozen=True)
class ExplodingGradient(Rule):
    """The gradient grows out of all proportion: from layer to layer on its way back, or from update to update.

    ## What it detects
    Before any update: a geometric growth from the last layer to the first over four layers and more, or a gradient a
    million times the weights, while the loss stays above that of a constant prediction. Then the network is the cause.
    Later: a thousandfold growth over the updates that ends in a non-finite or a thousandfold loss. That is a symptom.
    ## Why it matters
    One step along such a gradient throws the weights anywhere; a few more end in infinity and NaN.
    ## What else looks like this
    Large but steady norms (a loss summed over the batch), targets far from 1, a norm that grows from near 0 while the
    loss falls, one outlier batch, growth that clipping tames in a run that learns. None of them is reported.
    ## What to do
    At the start: initialise with Kaiming or Xavier, normalise, scale residual branches down; in a recurrent network use
    orthogonal weights or an LSTM. Later: lower the rate, clip to the usual norm, and see that gradients are cleared.
    """

    name = "exploding-gradient"
    boundary = Boundary.BACKWARD
    explains = (
        *("loss-nonfinite", "loss-diverging", "loss-off-baseline", "lr-too-high", "loss-spikes", "plateau-high"),
        *("loss-flat", "loss-at-baseline"),
    )
    change = "Initialise with Kaiming or Xavier, normalise each layer, scale residual branches down; clip the norm."
    verify = "Run again: the gradient norm at update 0 is no larger than the norm of the weights."

    layer: float = threshold(1.5, unit="a layer", why="healthy deep networks had at most 1.2 a layer before update 0")
    total: float = threshold(
        100.0, unit="times", why="beyond it no one rate fits both ends; healthy networks: under 10"
    )
    huge: float = threshold(1e6, unit="of the weights", why="at the usual rate of 1e-3 a step is a thousand times them")
    steep: float = threshold(
        10.0, unit="times", why="change of the loss over that of the weights: their power in the loss"
    )
    wild: float = threshold(
        1e4,
        unit="times",
        why="‖∇L‖·‖θ‖/|L|, whatever the scale of either: healthy networks had 85 before update 0 at the most",
    )
    growth: float = threshold(1e3, unit="of the start", why="healthy runs of the tuning set grew by 350 at the most")
    start: int = threshold(5, unit="updates", why="the median of five is blind to one outlier batch")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        norm, loss = unclipped(trace), trace.loss
        weights = weight_norm(trace)
        if norm is None or loss is None or not weights > 0:
            yield self.skipped("needs the loss and the norms of gradients and weights")
            return
        ratio = norm.first / weights
        found = self._by_depth(trace, ratio) or self._at_once(trace, ratio, loss) or self._over_time(trace, norm, loss)
        yield found or self.passed(f"the gradient norm starts at {ratio:.2g} of the weights', ends at {norm.last:.3g}")

    def _by_depth(self, trace: Trace, ratio: float) -> Outcome | None:
        known = [p for part in ("bias", "weight") if (p := profile(trace, part, 1)) is not None]
        for p in known if ratio >= 1 and _above_baseline(trace) else []:
            s = slope(p)
            if s.total < self.total or s.per_layer < self.layer or not s.geometric:
                continue
            first, last = p.tensors[0], p.tensors[-1]
            large = [t for t in trace.trained if len(t.shape) > 1 and (t.std or 0.0) * t.fan_in**0.5 > KAIMING]
            return self.finding(
                f"the gradient grows {s.per_layer:.2g} times at each of {len(p.tensors)} layers on the way back, "
                f"{s.total:.2g} times from {last.name} to {first.name}, before any update",
                Evidence(f"gradient of {first.name} over that of {last.name}", s.total, self.total, "", (0,)),
                Evidence("gradient norm over the norm of the weights", ratio, 1.0, "", (0,)),
                severity=Severity.WARNING,
                place=trace.place_of(min(large, key=trace.depth) if large else first),
            )
        return None

    def _at_once(self, trace: Trace, ratio: float, loss: Series) -> Outcome | None:
        power = ratio * weight_norm(trace) ** 2 / max(abs(loss.first), 1e-300)
        sure = 1.0 if ratio < np.inf else self.huge  # an infinite norm may come from one bad element: ask the loss too
        throws = ratio >= self.huge and power >= self.steep and _above_baseline(trace, sure)
        steers = power >= self.wild and learned_from_input(trace) is False
        if not (throws or steers):
            return None
        loops = {m.path for m in trace.modules if len(m.slots) > 1 or m.kind.startswith(RECURRENT)}
        inner = [t for t in trace.trained if t.module in loops and len(t.shape) > 1 and t.shape[0] % t.shape[1] == 0]
        loop = f"; {inner[-1].module} is applied many times in one forward pass" if inner else ""
        size = f"{ratio:.2g} times the weights" if ratio < np.inf else "too large for a norm in float32"
        return self.finding(
            f"the gradient is {size} before any update{loop}",
            Evidence("gradient norm over the norm of the weights", min(ratio, 1e38), None, "", (0,)),
            Evidence(
                "relative change of the loss over that of the weights", min(power, 1e38), self.wild, "times", (0,)
            ),
            severity=Severity.WARNING,
            place=trace.place_of(inner[-1]) if inner else trace.step_place,
        )

    def _over_time(self, trace: Trace, norm: Series, loss: Series) -> Outcome | None:
        sane = norm.finite
        if len(sane) < 2 * self.start or learned(trace):
            return None
        begin, level = (float(np.median(np.abs(s.values[: self.start]))) for s in (sane, loss))
        small = np.flatnonzero(~(sane.values >= self.growth * begin))
        since = int(sane.steps[small[-1] + 1]) if len(small) and small[-1] + 1 < len(sane) else None
        broken = first_nonfinite(loss) is not None or first_nonfinite(norm) is not None
        ended = broken or float(np.median(loss.values[-3:])) >= self.growth * level
        if since is None or not ended or sane.values[-1] < weight_norm(trace) or not begin > 0:
            return None
        return self.finding(
            f"the gradient norm grew from {begin:.3g} at the start to {sane.last:.3g} at update {sane.steps[-1]}",
            Evidence("gradient norm over that of the first updates", sane.last / begin, self.growth, "", (since,)),
            severity=Severity.WARNING,
            place=trace.step_place,
            first_step=since,
            symptom=True,
            explains=("loss-nonfinite",),
            explained_by=("lr-too-high", "gradient-not-cleared", "loss-diverging", "loss-sign"),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        grow, up = 3.0 ** np.arange(9.0, -1, -1), np.geomspace(1, 1e12, 60)
        bad, good, total = falling(60, 1e6, 1e3), falling(60), {"grad/total": 1e3}
        recurrent = {"grad/total": 1e12, "target/variance": 1.0}
        outlier = {"grad/total": np.where(up > 5e11, 1e9, 1.0)}
        return (
            fires("by a factor of 3 a layer", sample_deep(grow, bad, more=total), Severity.WARNING),
            fires("huge at once, as in a recurrent network", sample_run(loss=falling(60, 1e6, 1e4), signals=recurrent)),
            fires("over the updates, with the loss", sample_run(loss=up, signals={"grad/total": up}), Severity.WARNING),
            fires("a small loss on a cliff, at the baseline", sample_run(loss=flat(200), signals={"grad/total": 1e5})),
            silent("near miss: on a cliff, and it learns", sample_run(signals={"grad/total": 1e5})),
            silent("near miss: the same slope in a run that learns", sample_deep(grow, good, more=total)),
            silent("near miss: a level profile of a summed loss", sample_deep(np.full(10, 1e3), bad, more=total)),
            silent("near miss: large and steady", sample_run(loss=falling(60, 1e4, 2e3), signals={"grad/total": 1e4})),
            silent("near miss: targets of 1e6", sample_run(loss=np.full(60, 1e12), signals={"grad/total": 1e6})),
            silent("near miss: grows while the loss falls", sample_run(loss=good, signals={"grad/total": up})),
            silent("near miss: clipped at the scale of the loss", _scaled()),
            silent("near miss: one outlier batch", sample_run(loss=good, signals=outlier)),
        )


def _scaled() -> Run:
    """Clipped before the loss scaler divides: what clipping saw is 65536 times too large."""
    order = (ORDER[0], ORDER[1], Call("clip_norm", "train.py", 22), Call("unscale", "train.py", 23), ORDER[2])
    signals = {"grad/total": 0.4, "clip/norm": 26000.0, "clip/limit": 65536.0, "scale": 65536.0}
    return sample_run(loss=flat(60), order=order, signals=signals)


def _above_baseline(trace: Trace, start: float = 1.0) -> bool:
    """Whether the run ends worse than a constant prediction, and started `start` times as badly; where that isn't
    known, whether it has not learned."""
    known, own = baselines(trace), own_loss(trace)
    if not known or own is None:
        return start <= 1 and not learned(trace)
    end = own.values[-max(3, len(own) // 10) :]
    return own.first >= start * known[0].value and not float(np.median(end)) <= known[0].value
