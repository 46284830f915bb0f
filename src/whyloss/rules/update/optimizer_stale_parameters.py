"""optimizer-stale-parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.reach import Tensors, lately_without_gradient, listed, outside, ran, values
from whyloss.core.run import Run, Tensor, Trace
from whyloss.core.sample import flat, sample_run, sample_tensors
from whyloss.core.series import ABSENT
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class OptimizerStaleParameters(Rule):
    """The optimizer holds tensors that are not the model's, and the model's own are in no optimizer.

    ## What it detects
    Tensors in the optimizer that no loss reaches and no module uses, or that belong to no model, beside trainable
    tensors of the model that get gradients, are in no optimizer and never change.
    ## Why it matters
    The steps change something that nobody computes with. The model stays as it is, wholly or in the layer that was
    replaced.
    ## What else looks like this
    Master copies in higher precision that are copied back (the model's weights do move); a layer in the optimizer that
    is merely unused; several models with an optimizer each. None of these is reported.
    ## What to do
    Build the optimizer after the last change to the model: a replaced head, pruning, moving, wrapping, copying.
    """

    name = "optimizer-stale-parameters"
    boundary = Boundary.UPDATE
    explains = (
        *("optimizer-missing-parameters", "detached-parameters", "unused-parameters", "gradient-not-cleared"),
        *("update-not-landing", "vanishing-gradient", "zero-gradient", "exploding-gradient", "lr-too-low", "loss-flat"),
        *("loss-at-baseline", "plateau-high", "underfitting", "frozen-parameters", "symmetric-init"),
    )
    change = "Build the optimizer from the model's parameters after the model has its final form."
    verify = "Run again: every tensor of the optimizer has a gradient, and an update/norm above 0."

    updates: int = threshold(
        3, unit="updates", why="three steps in a row without a gradient on what the optimizer holds"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            if len(trace.every.steps) < self.updates:
                yield self.skipped(f"needs {self.updates} updates")
                continue
            own = outside(run, trace, 2)
            stale = self._stale(trace, own) if own else ()
            if stale:
                yield self._found(trace, stale, own)
            else:
                yield self.passed(
                    f"the {len(trace.trained)} tensors that {trace.optimizer} holds are those that are used"
                )

    def _stale(self, trace: Trace, own: Tensors) -> Tensors:
        idle = tuple(
            t for t in lately_without_gradient(trace, trace.trained, self.updates) if ran(trace, t) is not True
        )
        if len(idle) == len(trace.trained):
            return idle
        gone = tuple(t for t in idle if not t.in_model or any(_replaced(t, o) for o in own))
        if gone or any(t.in_model or t.in_graph is not False for t in trace.trained):
            return gone
        walked = any(t.in_model and t.in_graph for t in own)
        return trace.trained if walked else ()  # copies that are handed the gradients

    def _found(self, trace: Trace, stale: Tensors, own: Tensors) -> Finding:
        whole = len(stale) == len(trace.trained)
        given = whole and not lately_without_gradient(trace, stale, self.updates)
        what = (
            "copies outside the model, and their updates never come back to it"
            if given
            else "part of no model that runs, and the loss does not reach them"
        )
        these = f"all {len(stale)} tensors" if whole else f"{len(stale)} of {len(trace.trained)} tensors"
        shapes = [_shape(t) for t in stale]
        return self.finding(
            f"{these} of {trace.optimizer} are {what}, while {listed(own)} get gradients and are in no optimizer",
            Evidence("tensors of the optimizer that are not in use", len(stale), 0, f"of {len(trace.trained)}"),
            Evidence("values of the model that are in no optimizer", values(own), 0, "values"),
            Evidence("held → used", f"{', '.join(shapes[:4])} → {', '.join(_shape(t) for t in own[:4])}"),
            severity=Severity.ERROR,
            place=replace(
                trace.place_of(own[0]), file=trace.place.file, line=trace.place.line, source=trace.place.source
            ),
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        old = [_old(t) for t in sample_tensors()]
        own = [replace(t, in_optimizer=False) for t in sample_tensors()]
        none = {f"grad/norm[{t.name}]": ABSENT for t in old}
        head = [*sample_tensors()[:4], *own[4:], *old[4:]]
        drift = {f"weight/norm[{t.name}]": np.linspace(1.0, 2.0, 60) for t in own}
        flat_run: dict[str, Any] = {"loss": flat(60)}
        spare = [replace(t, key=99, name=f"old.{t.name}", module="old", in_graph=False) for t in sample_tensors()[4:]]
        kept = none | {f"grad/norm[{t.name}]": ABSENT for t in spare}
        alive = [*sample_tensors()[:4], *own[4:], *spare]
        later = {k: np.where(np.arange(60) < 30, 0.1, ABSENT) for k in none}
        return (
            fires("model built anew", sample_run(tensors=[*own, *old], signals=none, **flat_run), Severity.ERROR),
            fires("seen at the third update", sample_run(3, tensors=[*own, *old], signals=none), Severity.ERROR),
            fires("head replaced", sample_run(tensors=head, signals=none), Severity.ERROR),
            fires("head replaced, the old one kept", sample_run(tensors=alive, signals=kept), Severity.ERROR),
            fires("head replaced in the middle", sample_run(60, tensors=head, signals=later), Severity.ERROR),
            fires("gradients copied, values not", sample_run(tensors=[*own, *old], **flat_run), Severity.ERROR),
            silent("near miss: master weights, copied back", sample_run(60, tensors=[*own, *old], signals=drift)),
            silent("near miss: an unused tensor, nothing missing", sample_run(tensors=[*sample_tensors(), old[0]])),
            silent("near miss: trained and used", sample_run(**flat_run)),
            silent("near miss: bare tensors", sample_run(tensors=[replace(t, in_graph=True) for t in old], modules=())),
        )


def _old(t: Tensor) -> Tensor:
    return replace(t, key=t.key + 100, name=f"tensor{t.key}", module="", kind="", in_model=False, in_graph=False)


def _replaced(old: Tensor, new: Tensor) -> bool:
    """Whether `new` can have been put in the place of `old`: another number of outputs or inputs at the most."""
    alike = old.kind == new.kind and old.name.rpartition(".")[2] == new.name.rpartition(".")[2]
    same = len(old.shape) == len(new.shape)
    return alike and same and sum(a != b for a, b in zip(old.shape, new.shape, strict=True)) <= 1


def _shape(t: Tensor) -> str:
    return f"{t.name} {'×'.join(map(str, t.shape))}"
