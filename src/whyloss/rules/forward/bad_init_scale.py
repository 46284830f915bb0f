"""bad-init-scale."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod, sqrt
from typing import Any

from whyloss.core.dead import NORMS
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.initialisation import Scaled, scales
from whyloss.core.learning import ends_poorly, learned_from_input
from whyloss.core.levels import BINARY, CROSS_ENTROPY, baselines, objective, own_loss, says_nothing
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.saturation import bounded
from whyloss.core.step_graph import NORMS as NORM_CALLS
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

KAIMING, DEFAULT = sqrt(2.0), 1 / sqrt(3.0)  # the widest and the narrowest of the customary std·√fan_in


@dataclass(frozen=True)
class BadInitScale(Rule):
    """Weights start far too large, or far too small, for the number of inputs that each unit sums up.

    ## What it detects
    Weights whose standard deviation at the start, times √fan_in, is `wide` times that of Kaiming, `times` in all, with
    what they do: the first loss is far above that of a constant prediction, or sigmoids and tanhs behind them are flat.
    Or weights in a row of layers without normalisation that are `times` smaller than PyTorch's default and shrink the
    signal to `faint`. Both in a run that does not learn from its inputs, or ends poorly; an info where it recovers.
    ## Why it matters
    The signal grows or shrinks by that factor at each layer: units saturate, the first loss is enormous, or next to
    nothing of the input arrives at the end.
    ## What else looks like this
    Weights that are zero on purpose (heads, residual branches, LoRA's B), a small last layer, embeddings of N(0, 1)
    or N(0, 0.02²), weights in front of a normalisation, loaded weights. They lack the effect and are not reported.
    ## What to do
    Divide N(0, 1) by √fan_in, or leave PyTorch's default. A token embedding that is also the output layer wants a std
    of 0.02, not its default of 1.
    """

    name = "bad-init-scale"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-off-baseline", "activation-collapse", "activation-explosion", "saturated-activation"),
        *("vanishing-gradient", "exploding-gradient", "dead-relu", "loss-nonfinite", "loss-diverging", "lr-too-high"),
        *("lr-too-low", "loss-flat", "loss-at-baseline", "zero-gradient", "plateau-high", "not-converged"),
        *("nonfinite-forward", "gradient-overflow", "underfitting", "update-not-landing", "loss-spikes"),
    )
    explained_by = ("input-unscaled", "target-unscaled")
    change = "Scale the initial weights by 1/√fan_in (nn.init.kaiming_normal_), or leave PyTorch's default."
    verify = "Run again: the first loss is near that of a constant prediction."
    references = ("https://arxiv.org/abs/1502.01852",)

    wide: float = threshold(3.0, unit="times Kaiming's", why="customary initialisers lie within 2.5 of one another")
    times: float = threshold(10.0, unit="times", why="of all such layers; three of the customary ones differ by 2 to 8")
    entropy: float = threshold(3.0, unit="times ln C", why="default initialisation gives 1.0 to 1.2 times ln C")
    squares: float = threshold(10.0, unit="times the variance", why="targets three deviations off give as much")
    flat: float = threshold(0.1, unit="of the largest slope", why="default weights leave a tanh at 0.7 and more")
    faint: float = threshold(1e-3, unit="times", why="a hidden signal that is this much smaller is below the biases")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            found, reason = scales(trace), says_nothing(run, trace)
            if reason or not found:
                yield self.skipped(reason or "needs weights, their fan-in, and their values before the first update")
                continue
            yield self._large(trace, found) or self._small(trace, found) or self._well(found)

    def _well(self, found: tuple[Scaled, ...]) -> Outcome:
        low, high = min(s.ratio for s in found), max(s.ratio for s in found)
        return self.passed(f"weights start at {low:.2g} to {high:.2g} times 1/√fan_in, or without harm")

    def _large(self, trace: Trace, found: tuple[Scaled, ...]) -> Finding | None:
        wide = [s for s in found if s.ratio >= self.wide * KAIMING]
        grown = prod(s.ratio / KAIMING for s in wide)
        effect = self._effect(trace) if grown >= self.times else None
        if effect is None:
            return None
        suffers = learned_from_input(trace) is False or ends_poorly(trace) or _broke(trace)
        worst = max(wide, key=lambda s: s.ratio)
        severity = Severity.WARNING if suffers else Severity.INFO
        return self._found(trace, worst, f"{worst.ratio / KAIMING:.3g} times Kaiming's", len(wide), effect, severity)

    def _effect(self, trace: Trace) -> Evidence | None:
        """What weights that are too large do before any update."""
        own, levels, op = own_loss(trace), baselines(trace), objective(trace)
        if own is not None and levels and op is not None and own.steps[0] == 0:
            limit = (self.entropy if op.kind in CROSS_ENTROPY + BINARY else self.squares) * levels[0].value
            if not own.first <= limit:
                return Evidence(
                    f"first loss, while {levels[0].name} is {levels[0].value:.3g}", own.first, limit, "", (0,)
                )
        flattest = min((b.at_start for b in bounded(trace) if b.hidden), default=1.0)
        if flattest <= self.flat:
            return Evidence("mean slope of a hidden activation, of the largest", flattest, self.flat, "", (0,))
        return None

    def _small(self, trace: Trace, found: tuple[Scaled, ...]) -> Finding | None:
        thin = [s for s in found if s.ratio * self.times <= DEFAULT]
        left = prod(min(s.ratio / DEFAULT, 1.0) for s in found)
        hidden = [s for s in thin if s is not found[-1]]
        if not hidden or left > self.faint or _normalised(trace) or learned_from_input(trace) is not False:
            return None
        worst = min(hidden, key=lambda s: s.ratio)
        effect = Evidence("what the layers leave of a signal, of PyTorch's default", left, self.faint, "times", (0,))
        what = f"{DEFAULT / worst.ratio:.3g} times smaller than PyTorch's default"
        return self._found(trace, worst, what, len(thin), effect, Severity.WARNING)

    def _found(
        self, trace: Trace, worst: Scaled, what: str, count: int, effect: Evidence, severity: Severity
    ) -> Finding:
        t = worst.tensor
        more = f", and {count - 1} more like it" if count > 1 else ""
        return self.finding(
            f"{t.name} starts with a std of {t.std:.3g}, {what} for {worst.fan_in} inputs{more}",
            Evidence(f"std·√fan_in of {t.name}", worst.ratio, f"{DEFAULT:.2f} … {KAIMING:.2f}", "", (0,)),
            effect,
            severity=severity,
            place=trace.place_of(t),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        body = ("fc1.weight", "fc2.weight", "head.weight")
        wide: dict[str, dict[str, Any]] = {n: {"std": 4.0, "largest": 16.0} for n in body}
        thin: dict[str, dict[str, Any]] = {n: {"std": 1e-3, "largest": 4e-3} for n in body}
        high, bad = flat(200, 80.0), flat(200)
        head = {"head.weight": {"std": 1e-3, "largest": 4e-3}}
        norm = thin | {"act1": {"kind": "LayerNorm"}}
        zero = {n: {"std": 0.0, "largest": 0.0} for n in body[1:]}
        return (
            fires("N(0, 4²), first loss of 80", sample_run(loss=high, changed=wide), Severity.WARNING),
            fires("the same, it falls and ends high", sample_run(loss=falling(200, 80.0, 4.0), changed=wide)),
            fires("N(0, 0.001²) in all layers", sample_run(loss=bad, changed=thin), Severity.WARNING),
            silent("near miss: large, and it recovers", sample_run(loss=falling(200, 80.0, 0.2), changed=wide)),
            silent("near miss: large without effect", sample_run(loss=bad, changed=wide)),
            silent("near miss: small, and it learns", sample_run(changed=thin)),
            silent("near miss: only the last layer is small", sample_run(loss=bad, changed=head)),
            silent("near miss: small in front of a normalisation", sample_run(loss=bad, changed=norm)),
            silent("near miss: zeros on purpose", sample_run(loss=bad, changed=zero)),
            silent("near miss: off, with customary weights", sample_run(loss=high)),
        )


def _normalised(trace: Trace) -> bool:
    modules = any(m.kind.startswith(NORMS) for m in trace.modules)
    return modules or any(op.kind in NORM_CALLS for graph in trace.graphs[:1] for op in graph.ops)


def _broke(trace: Trace) -> bool:
    return trace.loss is not None and len(trace.loss.finite) < len(trace.loss)
