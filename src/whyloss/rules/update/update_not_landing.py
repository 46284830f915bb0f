"""update-not-landing."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.landing import Landing, landing, nearly_taken_back, taken_back
from whyloss.core.progress import learned
from whyloss.core.reach import listed
from whyloss.core.run import Trace
from whyloss.core.sample import flat, sample_run, sample_tensors
from whyloss.core.series import ABSENT
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class UpdateNotLanding(Rule):
    """The optimizer steps with a rate and gradients above 0, and the weights do not change, or change back.

    ## What it detects
    Weights that are the same bytes after step() as before at every observed update; or that change at every step and
    have, before each next update, the norm and the spread of rows that they had before the first.
    ## Why it matters
    Nothing is learned, while gradients, rates and even the updates look healthy.
    ## What else looks like this
    A rate of 0 or a warm-up from 0; steps that are smaller than the weights can hold, which is
    `update-lost-to-precision`; weights that are kept at one norm on purpose (their rows still turn); optimizers that
    update tensors in turn. Not reported.
    ## What to do
    Look for load_state_dict(), .data = …, copy_() or deepcopy inside the loop, and for a step() that is overridden.
    """

    name = "update-not-landing"
    boundary = Boundary.UPDATE
    explains = ("loss-flat", "loss-at-baseline", "lr-too-low", "underfitting", "plateau-high", "not-converged")
    change = "Let the weights keep their update: remove what restores or rebinds them between two steps."
    verify = "Run again: update/norm is above 0, and weight/norm differs from one observed update to the next."

    rows: int = threshold(
        3, unit="observed updates", why="three steps with gradient and rate that change no bit are no accident"
    )
    back: int = threshold(5, unit="observed updates", why="norms of all tensors equal to the last bit five times over")
    near: int = threshold(
        20, unit="observed updates", why="enough that updates which stay add up to more than one of them"
    )
    small: int = threshold(
        1000, unit="values", why="an update that stays changes such a norm by a thirtieth of its length and more"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        seen = landing(trace, self.rows)
        if not (seen.still or seen.moving or seen.unclear):
            yield self.skipped(f"needs {self.rows} observed updates with a rate and gradients above 0")
        elif seen.still and not seen.moving:
            yield self._still(trace, seen, Severity.ERROR)
        elif seen.still:
            yield self._still(trace, seen, Severity.INFO if learned(trace) else Severity.WARNING)
        elif not seen.moving:
            yield self.skipped("no weight changed, and the steps are small enough for rounding to be the reason")
        elif self._judged_back(trace) and taken_back(trace, self.back):
            yield self._back(trace, seen, exact=True)
        elif learned(trace) is False and nearly_taken_back(trace, self.near, self.small):
            yield self._back(trace, seen, exact=False)
        else:
            yield self.passed(f"updates changed {len(seen.moving)} of {len(trace.trained)} tensors, and stayed")

    def _judged_back(self, trace: Trace) -> bool:
        """Vectors have no rows that could turn: norms alone are believed once the run is seen not to learn."""
        turning = any(trace.signal(f"rows/spread[{t.name}]") is not None for t in trace.trained)
        return learned(trace) is False or (learned(trace) is None and turning)

    def _still(self, trace: Trace, seen: Landing, severity: Severity) -> Finding:
        whole = not seen.moving
        return self.finding(
            f"{listed(seen.still)} are unchanged by each of {seen.rows} updates with gradients and a rate above 0"
            + (f", of {len(trace.trained)} trained tensors" if whole else f", while {listed(seen.moving)} change"),
            Evidence("largest update/norm", 0.0, "above 0", "", (0, trace.updates - 1)),
            Evidence("tensors that no update changed", len(seen.still), 0, f"of {len(trace.trained)}"),
            severity=severity,
            place=trace.step_place if whole else trace.place_of(seen.still[0]),
            certain=whole,
        )

    def _back(self, trace: Trace, seen: Landing, *, exact: bool) -> Finding:
        t = max(seen.moving, key=lambda t: t.size)
        update, weight = trace.signal(f"update/norm[{t.name}]"), trace.signal(f"weight/norm[{t.name}]")
        assert update is not None
        assert weight is not None
        same = "has the same norm to the last bit" if exact else "is back within a hundredth of one"
        return self.finding(
            f"each update is undone: {listed(seen.moving)} change in every step, and before each of {len(weight)} "
            f"observed updates every weight {same}",
            Evidence(f"update/norm of {t.name}", float(np.median(update.values)), None, "", (0, trace.updates - 1)),
            Evidence(f"range of its weight/norm over {len(weight)} updates", float(np.ptp(weight.values)), "above 0"),
            severity=Severity.ERROR if exact else Severity.WARNING,
            place=trace.step_place,
            certain=exact,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [t.name for t in sample_tensors()]
        zero = {f"update/norm[{n}]": 0.0 for n in names}
        one = {f"update/norm[{n}]": 0.0 for n in names[:2]}
        far, tiny = {f"weight/norm[{names[0]}]": 1e8}, {"lr[0]": 1e-3}
        large: dict[str, dict[str, object]] = {
            names[0]: {"largest": 1e7, "shape": (1000, 64)},
            names[1]: {"largest": 1e7},
        }
        vector, slow = {f"update/norm[{names[1]}]": 0.0}, {"lr[0]": 1e-6}
        turns = {f"rows/spread[{n}]": 1.3 for n in names if "weight" in n}
        kept = {f"weight/norm[{n}]": 1.0 for n in names}
        wander = {f"weight/norm[{n}]": 1.0 + 1e-6 * np.sin(np.arange(60)) for n in names}
        drift = {f"weight/norm[{n}]": np.linspace(1.0, 1.2, 60) for n in names}
        half = {n: {"dtype": "bfloat16"} for n in names}
        groups = {n: {"group": 1} for n in names[:2]}
        none = {f"grad/norm[{n}]": ABSENT for n in names[:2]}
        in_turn = {f"update/norm[{n}]": np.where(np.arange(60) % 3 == i % 3, 0.01, 0.0) for i, n in enumerate(names)}
        still = flat(60)
        return (
            fires("no weight changes", sample_run(loss=still, signals=zero), Severity.ERROR),
            fires("seen at the third update", sample_run(3, signals=zero), Severity.ERROR),
            fires("two tensors do not change", sample_run(loss=still, signals=one), Severity.WARNING),
            fires("weights restored after each step", sample_run(loss=still, signals=turns | kept), Severity.ERROR),
            fires("pulled back to where they were", sample_run(loss=still, signals=turns | wander), Severity.WARNING),
            silent("near miss: the rate is 0", sample_run(loss=still, signals=zero | {"lr[0]": 0.0})),
            silent(
                "near miss: a group held at rate 0", sample_run(signals=one | {"lr[1]": 0.0}, changed=groups, groups=2)
            ),
            silent("near miss: two bfloat16 weights that rounding holds", sample_run(signals=one | slow, changed=half)),
            silent(
                "near miss: a bfloat16 norm's vector that rounding holds",
                sample_run(signals=vector | slow, changed=half),
            ),
            silent("near miss: float32 values of 1e6 under Adam", sample_run(signals=one | tiny | far, changed=large)),
            silent(
                "near miss: a float32 layer under SGD that nothing pulls",
                sample_run(signals=one | slow, optimizer="SGD"),
            ),
            silent("near miss: bfloat16 and a tiny rate", sample_run(signals=zero | {"lr[0]": 1e-6}, changed=half)),
            silent("near miss: two tensors have no gradient", sample_run(loss=still, signals=one | none)),
            silent("near miss: updated in turn", sample_run(loss=still, signals=in_turn)),
            silent("near miss: norms kept at 1, rows turn", sample_run(loss=still, signals=kept)),
            silent("near miss: does not learn, but moves", sample_run(loss=still, signals=drift | turns)),
        )
