"""dead-relu."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.dead import Dead, Gate, dead, fed_around, gates, share
from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.learning import learned_from_input
from whyloss.core.levels import baselines
from whyloss.core.run import Trace
from whyloss.core.sample import flat, sample_modules, sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

KILLERS = ("lr-too-high", "gradient-not-cleared", "loss-diverging")  # of a layer that was alive at first


@dataclass(frozen=True)
class DeadRelu(Rule):
    """Units behind a ReLU output 0 for every example, so no gradient passes through them.

    ## What it detects
    A ReLU none of whose units is above 0 from some update on: on all examples of a window of observed steps, or in its
    samples while the gradient of the layer before it is exactly 0 at every update. A functional ReLU is recognised by
    the layer in front of it. The earliest such layer in the forward pass is named.
    ## Why it matters
    A dead unit gets a gradient of exactly 0: no update revives it, and nothing in front of a dead layer can learn.
    ## What else looks like this
    Sparse activations (90 % zeros, yet each unit fires for some example); a layer with 10 to 60 % silent units in a run
    that learns; negative outputs before GELU, a normalisation or the loss. None of them is reported.
    ## What to do
    Dead from the start: look at the biases (they should start near 0), the initialisation, the scale and sign of the
    inputs. Dead later: a step was too large; lower the rate, clip the gradient, look at that batch.
    """

    name = "dead-relu"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-flat", "loss-at-baseline", "zero-gradient", "vanishing-gradient", "lr-too-low"),
        *("update-not-landing", "underfitting", "plateau-high"),
    )
    explained_by = ("symmetric-init",)
    change = "Start biases at 0 and weights at Kaiming's scale, standardise the inputs, or use LeakyReLU or GELU."
    verify = "Run again: activation/high of the layer is above 0, and the gradient of its weight is not 0."

    window: int = threshold(20, unit="updates", why="units of healthy runs that miss a batch fire within twenty")
    whole: float = threshold(0.99, unit="of the units", why="with fewer, some unit still passes a gradient on")
    most: float = threshold(0.8, unit="of the units", why="healthy runs that learn had up to 60 % silent units")
    giant: float = threshold(0.1, unit="of the norm", why="a hundred times the usual 1e-3: enough to turn every sign")

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        judged = gates(trace)
        found = [d for gate in judged if (d := self._dead(trace, gate)) is not None]
        parts = [(part, gate) for gate in judged if (part := share(trace, gate, self.window)) is not None]
        part, gate = max(parts, key=lambda p: p[0], default=(0.0, None))
        if found:
            yield self._report(trace, found)
        elif gate is not None and part >= self.most:
            yield self._most_of(trace, gate, part)
        elif judged:
            yield self.passed(f"at most {part:.0%} of the units of any of {len(judged)} layers with a ReLU are silent")
        else:
            yield self.skipped("no ReLU, and no layer that one could follow, was watched")

    def _dead(self, trace: Trace, gate: Gate) -> Dead | None:
        proven = dead(trace, gate, self.window)
        part = None if proven else share(trace, gate, self.window)
        return proven if part is None or part < self.whole else Dead(gate, 0)

    def _report(self, trace: Trace, found: list[Dead]) -> Outcome:
        first = found[0]
        how, evidence = self._killer(trace, first)
        later = len(found) - 1
        more = f"; {later} later layer{'s are' if later > 1 else ' is'} dead with it" if later else ""
        since = f"from update {first.since} on{how}" if first.since else "from the first update on"
        killed: dict[str, Any] = {"explained_by": KILLERS} if first.since else {}
        return self.finding(
            f"no unit of layer '{first.gate.name}' puts out anything above 0, for any example, {since}{more}",
            Evidence("share of units that are never above 0", 1.0, self.whole, "", (first.since, trace.updates - 1)),
            *evidence,
            severity=_severity(trace, first),
            place=_place(trace, first.gate),
            first_step=first.since,
            certain=True,
            **killed,
        )

    def _killer(self, trace: Trace, d: Dead) -> tuple[str, tuple[Evidence, ...]]:
        """Whether a giant update came right before, as words and as evidence."""
        for t in d.gate.tensors if d.since else ():
            way, norm = trace.signal(f"update/norm[{t.name}]"), trace.signal(f"weight/norm[{t.name}]")
            if way is None or norm is None or len(way) != len(norm) or not norm.first > 0:
                continue
            before = way.steps < d.since
            ratio = float(np.max((way.values / norm.first)[before][-3:], initial=0.0))
            if ratio >= self.giant:
                what, steps = f"update of {t.name}, of its first norm", tuple(int(s) for s in way.steps[before][-3:])
                evidence = Evidence(f"largest {what}, just before", ratio, self.giant, "", steps)
                return f", after updates of {t.name} of up to {ratio:.0%} of its norm", (evidence,)
        return "", ()

    def _most_of(self, trace: Trace, gate: Gate, part: float) -> Outcome:
        return self.finding(
            f"{part:.0%} of the units of layer '{gate.name}' are never above 0, for any example of the last window",
            Evidence("share of units that are never above 0", part, self.most, "", (0, trace.updates - 1)),
            severity=Severity.WARNING if learned_from_input(trace) is False else Severity.INFO,
            place=_place(trace, gate),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        bad, exact = flat(200), {"activation/exact[act1]": 1.0}
        still = {f"grad/norm[fc1.{part}]": 0.0 for part in ("weight", "bias")}
        begun = (np.arange(200) < 60) * 1.0
        killed = dict.fromkeys(still, begun) | {"activation/high[act1]": begun}
        start = exact | still | {"activation/high[act1]": 0.0, "activation/dead[act1]": 1.0}
        most, some = exact | {"activation/dead[act1]": 0.85}, exact | {"activation/dead[act1]": 0.6}
        round_it = {"activation/high[act2]": 0.0, "activation/dead[act2]": 1.0, "activation/exact[act2]": 1.0}
        plain = tuple(m for m in sample_modules() if m.kind == "Linear")
        below, gelu = {f"activation/{p}[fc1]": -1.0 for p in ("high", "low")}, sample_modules(activation="GELU")
        return (
            fires("all units dead from the start", sample_run(loss=bad, signals=start), Severity.ERROR),
            fires("killed at update 60", sample_run(signals=killed), Severity.ERROR),
            fires("functional ReLU", sample_run(loss=bad, modules=plain, signals=still | below), Severity.ERROR),
            fires("85 % dead, nothing learned", sample_run(loss=bad, signals=most), Severity.WARNING),
            silent("near miss: 90 % zeros, no silent unit", sample_run(signals={"activation/zeros[act1]": 0.9})),
            silent("near miss: 60 % silent units in a run that learns", sample_run(signals=some)),
            silent("near miss: 85 % silent, but it learns", sample_run(signals=most)),
            silent("near miss: dead branch, the path round it learns", sample_run(signals=round_it)),
            silent("near miss: negative before GELU", sample_run(modules=gelu, signals=still | below)),
            silent("near miss: negative outputs, live gradient", sample_run(modules=plain, signals=below)),
        )


def _severity(trace: Trace, d: Dead) -> Severity:
    """Nothing passes: error. Where the signal goes round, as in a run that beats any constant: by what it learns."""
    around = fed_around(trace, d.gate)
    if not learned_from_input(trace):
        return Severity.WARNING if around else Severity.ERROR
    if around or (baselines(trace) and not d.since):
        return Severity.INFO
    return Severity.WARNING if around is None and not d.since else Severity.ERROR


def _place(trace: Trace, gate: Gate) -> Place:
    """The layer in front of the ReLU, and its bias where it has one."""
    last = next((t for t in gate.tensors if t.name.endswith("bias")), next(iter(gate.tensors), None))
    return trace.place_of(last) if last else Place(module=gate.name)
