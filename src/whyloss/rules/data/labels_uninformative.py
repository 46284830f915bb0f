"""labels-uninformative."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.movement import ratios, weights
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat, sample_run, with_probe
from whyloss.rules.curve.loss_at_baseline import LossAtBaseline
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "overfit-batch"


@dataclass(frozen=True)
class LabelsUninformative(Rule):
    """The labels have nothing to do with the inputs that they come with.

    ## What it detects
    The run ends where a constant prediction would be (loss-at-baseline), though its weights moved; and a copy of the
    step, trained on one recorded batch alone, learns that batch by heart, and no quicker than with its labels in
    another order. So the way from the input to the loss and back is whole, and the model and the rate can learn; what
    is missing is something that labels and inputs share.
    ## Why it matters
    Nothing about the model or the optimizer will help: inputs and labels have to be paired again.
    ## What else looks like this
    A task whose structure is found late (parity), data that are noise by nature, and a training that differs from the
    copy: gradients that pile up or are clipped away, updates that don't land. Those that whyloss can see explain it.
    Batches that can't be learned by heart speak against it, and it is not reported.
    ## What to do
    Print a few inputs beside their labels. Look for a shuffle of one without the other, a sort, a filter or an index
    that is applied to one only, and for augmentation that destroys the input.
    """

    name = "labels-uninformative"
    boundary = Boundary.DATA
    explains = ("loss-at-baseline", "loss-flat", "plateau-high", "underfitting")
    explained_by = (
        *("input-ignored", "batch-leak", "input-constant", "unshuffled-data", "step-missing", "update-not-landing"),
        *("optimizer-missing-parameters", "optimizer-stale-parameters", "gradient-not-cleared", "frozen-parameters"),
        *(
            "gradient-cleared-early",
            "clip-too-small",
            "lr-too-high",
            "lr-too-low",
            "lr-zero",
            "update-lost-to-precision",
        ),
        *("class-imbalance", "dropout-always-on", "lr-schedule-collapsed", "weight-decay-dominates", "target-shift"),
        *("missing-nonlinearity", "symmetric-init", "dead-relu", "zero-gradient", "vanishing-gradient", "output-range"),
        *("saturated-activation", "bad-init-scale", "loss-broadcast", "loss-sign", "loss-wrong-value", "padding-leak"),
        *("softmax-before-cross-entropy", "sigmoid-before-bce-with-logits", "loss-target-mismatch", "label-range"),
        *("optimizer-recreated", "accumulation-scale", "detached-parameters", "duplicate-batches", "scaler-collapsed"),
    )
    change = "Pair inputs and labels again: print some side by side, and look for what reorders one of them alone."
    verify = (
        "Train on the same inputs with labels that are permuted on purpose: if the loss is the same, there was none."
    )

    moved: float = threshold(1e-4, unit="of a weight's norm", why="a tenth of the customary 1e-3 of an update")

    quicker: float = threshold(
        0.8,
        unit="of the steps with permuted labels",
        why="labels of a simple rule took 0.6 of them, random ones 0.9 to 1.2",
    )
    times: float = threshold(
        3.0, unit="times the steps on one batch", why="what all batches share takes longer to find"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome != "memorised":
                yield self.passed("a batch could not be learned by heart in the time there was: no sign of bad labels")
            else:
                yield self._judge(run, trace, probes[-1])

    def _judge(self, run: Run, trace: Trace, probe: Probe) -> Outcome:
        at_baseline = any(
            isinstance(o, Finding) and o.severity.alarm for o in LossAtBaseline().check(replace(run, traces=(trace,)))
        )
        if not at_baseline:
            return self.passed("the loss does not end at that of a constant prediction")
        ratio = ratios(trace, weights(trace))
        middle = float(np.median(ratio.values)) if ratio is not None else float("nan")
        if not middle >= self.moved:
            return self.passed(f"the middle update is {middle:.2g} of its weight's norm: too small to learn anything")
        reached, permuted = probe.number("reached"), probe.number("reached_permuted")
        if not reached >= self.quicker * permuted:
            return self.passed(
                f"a batch was learned by heart in {reached:.0f} steps, with its labels in another order in "
                f"{permuted:.0f} and more: they do share something with the inputs"
            )
        if trace.updates < self.times * reached:
            return self.passed(f"one batch alone takes {reached:.0f} steps to learn: the run has not made many more")
        first, last, level = (probe.number(name) for name in ("first", "last", "level"))
        return self.finding(
            "the loss stays at that of a constant prediction, though a recorded batch can be learned by heart: over "
            "all batches the labels seem to have nothing to do with the inputs",
            Evidence("loss on one batch, trained on it alone", last, 0.5 * level, "", (probe.step,)),
            Evidence("the same before", first, level, "", (probe.step,)),
            Evidence(
                "steps until half of that", reached, permuted, "steps; limit: with the labels permuted", (probe.step,)
            ),
            Evidence("middle update", middle, self.moved, "of its weight's norm"),
            severity=Severity.WARNING,
            place=probe.place,
            first_step=0,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        numbers = {"first": 2.31, "last": 0.1, "level": 2.1, "steps": 150, "reached": 60, "reached_permuted": 62}
        stuck = sample_run(loss=flat(300))
        still = sample_run(loss=flat(300), signals={f"update/norm[{t}.weight]": 1e-9 for t in ("fc1", "fc2", "head")})
        parity = sample_run(loss=np.r_[flat(400), falling(100, 2.3, 0.1)])
        return (
            fires("shuffled labels", with_probe(stuck, PROBE, "memorised", numbers), Severity.WARNING),
            silent("near miss: no batch can be learned either", with_probe(stuck, PROBE, "not-memorised", numbers)),
            silent("near miss: a long plateau before the drop", with_probe(parity, PROBE, "memorised", numbers)),
            silent("near miss: next to no updates", with_probe(still, PROBE, "memorised", numbers)),
            silent(
                "near miss: other labels would be harder to learn",
                with_probe(stuck, PROBE, "memorised", numbers | {"reached_permuted": 140}),
            ),
            silent("near miss: a short run", with_probe(stuck, PROBE, "memorised", numbers | {"reached": 150})),
            silent("near miss: it learns", with_probe(sample_run(), PROBE, "memorised", numbers)),
        )
