"""unused-parameters."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.initialisation import untrained
from whyloss.core.progress import learned
from whyloss.core.reach import Tensors, beside, idle, kept_elsewhere, listed, reached_elsewhere, values
from whyloss.core.run import Run, Tensor, Trace
from whyloss.core.sample import flat, sample_modules, sample_run, sample_tensors
from whyloss.core.series import ABSENT
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class UnusedParameters(Rule):
    """Parameters are in the optimizer, and nothing in the forward pass uses them.

    ## What it detects
    Trained tensors whose gradient was None at every update, and whose module never ran in training (or ran without
    using this one of its parameters).
    ## Why it matters
    A layer that was written and then not called, or is skipped by a condition, is a part of the model that is missing.
    ## What else looks like this
    Experts, exits and heads beside others that do run; a pooler or a head that this task has no use for, in a library's
    model or in a run that learns without it; averaged copies; loaded weights. These are an info at the most.
    ## What to do
    Call the module in forward, look at the condition that skips it, or remove it. `print(model)` against forward().
    """

    name = "unused-parameters"
    boundary = Boundary.BACKWARD
    explains = ("zero-gradient", "loss-flat", "loss-at-baseline", "plateau-high", "underfitting", "symmetric-init")
    change = "Call this module in forward(), or remove it from the model."
    verify = "Run again: grad/norm of each of these tensors is observed."

    updates: int = threshold(
        3, unit="updates", why="alternating losses and optional branches have shown up within three"
    )

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            yield from self._judge(trace, reached_elsewhere(run, trace))

    def _judge(self, trace: Trace, elsewhere: frozenset[int]) -> Iterator[Outcome]:
        if len(trace.every.steps) < self.updates or not trace.trained:
            yield self.skipped(f"needs the gradients of {self.updates} updates")
            return
        if all(m.order is None for m in trace.modules):
            yield self.skipped("no module was seen to run: bare tensors, or a compiled model")
            return
        _, unused = idle(trace, self.updates)
        aside = kept_elsewhere(trace, unused)
        unused = tuple(t for t in unused if t not in aside and t.key not in elsewhere)
        found: dict[tuple[Severity, str], Tensors] = {}
        for t in unused:
            verdict = self._severity(trace, t, beside(t, unused))
            found[verdict] = (*found.get(verdict, ()), t)
        for (severity, why), members in found.items():
            yield self._found(trace, members, severity, why)
        if not found:
            yield self.passed(f"each of the {len(trace.trained)} trained tensors was used in some update")

    def _severity(self, trace: Trace, tensor: Tensor, part: Tensors) -> tuple[Severity, str]:
        """`part`: the unused tensors of the same part of the model."""
        module = trace.module(tensor.module)
        around = [trace.module(path) for path in module.siblings] if module is not None else []
        if any(m is not None and m.order is not None for m in around):
            return Severity.INFO, "; others beside it run, as with experts and heads"
        if not tensor.user_code:
            return Severity.INFO, "; it belongs to a library's model"
        if untrained(part) is False:
            return Severity.INFO, "; its weights look trained"
        if learned(trace):
            return Severity.INFO, "; the run trains without it"
        return Severity.WARNING, ""

    def _found(self, trace: Trace, unused: Tensors, severity: Severity, why: str) -> Finding:
        rows = len(trace.every.steps)
        own = trace.module(unused[0].module)
        called = own is not None and own.order is not None
        what = "runs without using it" if called else "never ran in training"
        return self.finding(
            f"{listed(unused)} had no gradient at any of {rows} updates: {unused[0].module or 'the model'} {what}{why}",
            Evidence("updates that used them", 0, f"some of {rows}", "updates", (0, trace.updates - 1)),
            Evidence("values that are not used", values(unused), values(trace.trained), "of all trained"),
            severity=severity,
            place=trace.place_of(unused[0]),
            certain=severity.alarm,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        unused: dict[str, dict[str, object]] = {
            "fc2.weight": {"in_graph": False},
            "fc2.bias": {"in_graph": False},
            "fc2": {"order": None},
        }
        none = {"grad/norm[fc2.weight]": ABSENT, "grad/norm[fc2.bias]": ABSENT}
        library = {k: v | ({"user_code": False} if "." in k else {}) for k, v in unused.items()}
        expert = unused | {"fc2": {"order": None, "siblings": ("fc1",)}}
        trained = {k: v | ({"std": 0.4, "largest": 2.0} if "weight" in k else {}) for k, v in unused.items()}
        drift = {f"weight/norm[{n}]": np.linspace(1.0, 2.0, 60) for n in ("fc2.weight", "fc2.bias")}
        token = sample_tensors()[0]
        token = replace(token, key=99, name="token", module="", kind="Net", shape=(1, 64), in_graph=False)
        root = replace(sample_modules()[0], path="", kind="Net", order=9, slots=())
        return (
            fires("layer not called", sample_run(loss=flat(60), signals=none, changed=unused), Severity.WARNING),
            fires("seen at the third update", sample_run(3, signals=none, changed=unused), Severity.WARNING),
            fires(
                "parameter of the model not used",
                sample_run(
                    loss=flat(60),
                    tensors=[*sample_tensors(), token],
                    modules=[*sample_modules(), root],
                    signals={"grad/norm[token]": ABSENT},
                ),
                Severity.WARNING,
            ),
            silent("near miss: pooler in a run that learns", sample_run(signals=none, changed=unused)),
            silent("near miss: pooler of a library's model", sample_run(loss=flat(60), signals=none, changed=library)),
            silent("near miss: idle expert", sample_run(loss=flat(60), signals=none, changed=expert)),
            silent("near miss: loaded weights", sample_run(loss=flat(60), signals=none, changed=trained)),
            silent("near miss: averaged copy", sample_run(loss=flat(60), signals=none | drift, changed=unused)),
            silent("near miss: called now and then", sample_run(loss=flat(60), changed=unused, signals=_sometimes())),
            silent("near miss: out_proj of attention", sample_run(loss=flat(60), signals=none, changed=_attention())),
        )


def _sometimes() -> dict[str, np.ndarray]:
    return {f"grad/norm[fc2.{p}]": np.where(np.arange(60) % 5 == 4, 0.1, ABSENT) for p in ("weight", "bias")}


def _attention() -> dict[str, dict[str, object]]:
    """torch runs attention's out_proj without calling it; its gradient is missing here for another reason."""
    inside = {f"fc2.{p}": {"module": "act1.out_proj", "in_graph": False} for p in ("weight", "bias")}
    return inside | {"fc2": {"path": "act1.out_proj", "order": None}, "act1": {"kind": "MultiheadAttention"}}
