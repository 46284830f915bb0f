"""class-imbalance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import BINARY, CROSS_ENTROPY, baselines, objective, own_loss, says_nothing
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.series import fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class ClassImbalance(Rule):
    """Nearly all labels are of one class, and the model says just that.

    ## What it detects
    One class holds more than `share` of the labels, and the loss ends within `near` of the label entropy: that of a
    prediction which always gives the class shares. As an info: the loss is below it, and no prediction of the second
    half of the run names another class.
    ## Why it matters
    The accuracy looks excellent and is that of the majority. The rare class is never found.
    ## What else looks like this
    Probabilities that are wanted as such (of a click, say) may be good and never reach one half: hence an info.
    Imbalanced labels that are learned well: the loss is far below their entropy. A network whose input does not arrive
    at the output stops at the same level; where such a cause is found, it stands above this one.
    ## What to do
    Weight the classes (`weight=`, `pos_weight=`), or sample the rare one more often, and judge by recall and precision.
    First see whether one batch with both classes can be fitted: if not, the fault is elsewhere.
    """

    name = "class-imbalance"
    boundary = Boundary.DATA
    explains = ("loss-at-baseline", "loss-flat", "plateau-high", "underfitting")
    explained_by = (
        "input-ignored",
        "input-constant",
        "labels-uninformative",
        "dead-relu",
        "zero-gradient",
        "vanishing-gradient",
        "detached-parameters",
        "frozen-parameters",
        "optimizer-missing-parameters",
        "optimizer-stale-parameters",
        "lr-too-low",
        "lr-too-high",
        "lr-zero",
        "symmetric-init",
        "saturated-activation",
        "input-unscaled",
        "sigmoid-before-bce-with-logits",
        "softmax-before-cross-entropy",
        "update-not-landing",
        "exploding-gradient",
    )
    change = "Weight the rare class (weight=, pos_weight=) or sample it more often; judge by recall, not by accuracy."
    verify = "Fit one batch that holds both classes: if that works, weighting is the remedy; if not, look elsewhere."
    references = ("https://doi.org/10.1016/j.neunet.2018.07.011",)

    share: float = threshold(0.8, unit="of the labels", why="below it, predicting one class is plainly wrong")
    near: float = threshold(0.05, unit="of the label entropy", why="batches scatter around it by that much")
    looks: int = threshold(10, unit="looks", why="each at a batch, in the second half of the run")
    updates: int = threshold(100, unit="updates", why="healthy imbalanced runs had left it by then")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            op, share, own = objective(trace), trace.signal("target/share"), own_loss(trace)
            reason = says_nothing(run, trace)
            if reason or op is None or op.kind not in CROSS_ENTROPY + BINARY or share is None or own is None:
                yield self.skipped(reason or "needs one loss op with class labels")
            elif trace.updates < self.updates or not math.isfinite(share.last):
                yield self.skipped(f"needs {self.updates} updates")
            elif share.last < self.share:
                yield self.passed(f"the largest class holds {share.last:.0%} of the labels")
            else:
                yield self._judge(trace, share.last)

    def _judge(self, trace: Trace, share: float) -> Outcome:
        own, known = own_loss(trace), baselines(trace)
        result = fall(own) if own is not None else None
        if result is None or not known:
            return self.skipped("needs the loss op's own value")
        entropy, end = known[-1].value, result.end
        assert own is not None
        later = own.finite.values[len(own.finite) // 2 :]
        level = float(np.mean(later))
        if min(end, level) < (1 - self.near) * entropy or end > 1.3 * entropy:
            seen = f"one class holds {share:.0%} of the labels; the loss is {end:.3g}, not {entropy:.3g}"
            return self._never_named(trace, share) or self.passed(seen)
        return self.finding(
            f"one class holds {share:.1%} of the labels, and the loss stays at {level:.4g}, that of predicting the "
            f"class shares ({entropy:.4g})",
            Evidence("share of the largest class", share, self.share),
            Evidence("mean loss of the second half", level, entropy, "", (0, trace.updates - 1)),
            severity=Severity.WARNING,
            place=trace.loss_place,
        )

    def _never_named(self, trace: Trace, share: float) -> Outcome | None:
        named = trace.signal("prediction/share")
        later = named.finite.values[len(named.finite) // 2 :] if named is not None else np.zeros(0)
        if len(later) < self.looks or later.min() < 1:
            return None
        return self.finding(
            f"one class holds {share:.1%} of the labels, and the model names no other: what it has learned of the "
            "rare ones never reaches one half",
            Evidence("share of the largest class", share, self.share),
            Evidence("predictions that name it, in the second half", 1.0, 1.0, f"at all {len(later)} looks"),
            severity=Severity.INFO,
            place=trace.loss_place,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        binary = (Objective(kind="binary_cross_entropy_with_logits"),)
        rare = {"target/entropy": 0.1347, "target/share": 0.97}
        return (
            fires(
                "3 % positives, at the entropy",
                sample_run(
                    loss=np.r_[falling(60, 0.69, 0.136), flat(200, 0.135, 0.02)], objectives=binary, signals=rare
                ),
                Severity.WARNING,
            ),
            silent(
                "near miss: 3 % positives, learned",
                sample_run(loss=falling(300, 0.69, 0.02), objectives=binary, signals=rare),
            ),
            fires(
                "3 % positives, below the entropy, and none is ever predicted",
                sample_run(loss=flat(300, 0.115, 0.02), objectives=binary, signals=rare | {"prediction/share": 1.0}),
                Severity.INFO,
            ),
            silent(
                "near miss: some are",
                sample_run(loss=flat(300, 0.115, 0.02), objectives=binary, signals=rare | {"prediction/share": 0.98}),
            ),
            silent("near miss: balanced, at the entropy", sample_run(loss=flat(200), signals={"target/share": 0.11})),
            silent(
                "near miss: little signal, a tenth below the entropy",
                sample_run(loss=flat(300, 0.12, 0.02), objectives=binary, signals=rare),
            ),
            silent("near miss: too short", sample_run(loss=flat(50, 0.135), objectives=binary, signals=rare)),
        )
