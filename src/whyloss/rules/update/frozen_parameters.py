"""frozen-parameters."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.initialisation import untrained
from whyloss.core.progress import fell, learned
from whyloss.core.reach import Tensors, held, kept_elsewhere, listed, ran, values
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, flat, sample_run, sample_tensors
from whyloss.core.series import ABSENT, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class FrozenParameters(Rule):
    """Most of the network is frozen, and the frozen weights are still those of a fresh initialisation.

    ## What it detects
    requires_grad False on `share` of the model's values and more, in layers that run, whose mean, std and largest value
    are those of an initialiser.
    ## Why it matters
    Freezing pays when the frozen weights are good. Random ones stay random: the rest can only learn on top of them.
    ## What else looks like this
    A loaded backbone or the base under LoRA (its weights no longer look like an initialisation): an info. Random
    features on purpose, in a run that learns well: an info. A frozen discriminator that another optimizer trains,
    averaged copies and target networks: nothing.
    ## What to do
    Load the weights before freezing, and check that they were loaded; freeze only what was loaded; else do not freeze.
    """

    name = "frozen-parameters"
    boundary = Boundary.UPDATE
    explains = (
        *("loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "lr-too-low", "lr-limited-plateau"),
        *("activation-collapse", "symmetric-init", "not-converged", "loss-off-baseline"),
    )
    change = "Load trained weights into the frozen layers, or set requires_grad back to True on them."
    verify = "Run again: the frozen weights are trained ones, or get gradients; the loss falls further."

    share: float = threshold(
        0.5, unit="of the model's values", why="below half, most of the network learns around them"
    )
    well: float = threshold(
        0.5, unit="of the first loss", why="a loss that lost half of its start shows that the features serve"
    )
    updates: int = threshold(20, unit="updates", why="fewer do not show whether it learns all the same")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            if trace.updates < self.updates:
                yield self.skipped(f"needs {self.updates} updates to see whether it learns")
                continue
            elsewhere = held(run) - {t.key for t in trace.tensors if t.in_optimizer}
            model = tuple(t for t in trace.tensors if t.key not in elsewhere and ran(trace, t) is not False)
            frozen = tuple(t for t in model if not t.trainable)
            copies = kept_elsewhere(trace, frozen)
            frozen = tuple(t for t in frozen if t not in copies)
            part = values(frozen) / max(values(t for t in model if t not in copies), 1)
            if part < self.share:
                yield self.passed(f"{part:.0%} of the values of the model are frozen")
            else:
                yield self._found(trace, frozen, part)

    def _found(self, trace: Trace, frozen: Tensors, part: float) -> Finding:
        fresh = untrained(frozen)
        severity, look = Severity.WARNING, "still look like a fresh initialisation"
        if fresh is not True:
            severity = Severity.INFO
            look = (
                "look trained, as of a backbone frozen on purpose"
                if fresh is False
                else "can't be told from trained ones"
            )
        elif self._serves(trace):
            severity, look = Severity.INFO, look + "; the run learns well on them"
        widest = max(frozen, key=lambda t: t.size)
        return self.finding(
            f"{listed(frozen)} are frozen, {part:.0%} of the values of the model, and their weights {look}",
            Evidence("frozen share of the model's values", part, self.share, "of all"),
            *(
                [Evidence(f"std of {widest.name}, fan-in {widest.fan_in}", widest.std, None, "", (0,))]
                if widest.std is not None
                else []
            ),
            severity=severity,
            place=trace.place_of(frozen[0]),
        )

    def _serves(self, trace: Trace) -> bool:
        result = fall(trace.loss) if trace.loss is not None else None
        return bool(learned(trace)) and result is not None and fell(result, self.well)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        names = [t.name for t in sample_tensors()][:4]
        none = {f"grad/norm[{n}]": ABSENT for n in names}
        drift = {f"weight/norm[{n}]": np.linspace(1.0, 2.0, 60) for n in names}
        frozen = {n: {"trainable": False, "in_optimizer": False} for n in names}
        kept = {n: {"trainable": False} for n in names}
        loaded = {n: {"trainable": False, "std": 0.31, "largest": 1.7} for n in names}
        some = {n: {"trainable": False} for n in names[2:]}
        idle = frozen | {"fc1": {"order": None}, "fc2": {"order": None}}
        a_bit = falling(60, 0.69, 0.5, 0.01)
        return (
            fires(
                "random body frozen, flat", sample_run(loss=flat(60), signals=none, changed=frozen), Severity.WARNING
            ),
            fires(
                "the same, still in the optimizer",
                sample_run(loss=flat(60), signals=none, changed=kept),
                Severity.WARNING,
            ),
            fires(
                "random body frozen; it learns a little",
                sample_run(loss=a_bit, signals=none, changed=frozen),
                Severity.WARNING,
            ),
            silent("near miss: loaded backbone frozen", sample_run(loss=flat(60), signals=none, changed=loaded)),
            silent("near miss: random features that serve", sample_run(signals=none, changed=frozen)),
            silent("near miss: a third of the values frozen", sample_run(loss=flat(60), signals=none, changed=some)),
            silent(
                "near miss: frozen average that moves", sample_run(loss=flat(60), signals=none | drift, changed=frozen)
            ),
            silent("near miss: frozen layers that do not run", sample_run(loss=flat(60), signals=none, changed=idle)),
            silent("near miss: too few updates to say", sample_run(5, signals=none, changed=frozen)),
        )
