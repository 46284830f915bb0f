"""What the rules on the first non-finite value share: each takes the locations of its own phase."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from whyloss.core.finding import Evidence, Outcome, Place, Severity
from whyloss.core.location import Located, Location, NonFinite, Phase
from whyloss.core.onset import Onset, onset
from whyloss.core.run import Run, Trace
from whyloss.core.sample import falling, sample_run
from whyloss.rules.rule import RUN_FOLDER, Rule

GROWTH = 10.0  # times its level: losses and gradients of sane batches scatter by less
GROWN = (
    "lr-too-high",
    "exploding-gradient",
    "loss-diverging",
    "loss-off-baseline",
    "gradient-not-cleared",
    "bad-init-scale",
    "activation-explosion",
    "target-unscaled",
    "loss-sign",
    "loss-reduction",
    "accumulation-scale",
)  # what makes values grow until one overflows
SYMPTOMS = ("loss-diverging",)  # of that: a call that is named outranks it
MOST_INPUTS = 3


def located(run: Run, trace: Trace) -> Located | None:
    """Where this optimizer's first non-finite update arose; None where there was none, or nobody could tell."""
    return next((found for found in run.located if found.trace == trace.index), None)


def look(
    rule: Rule,
    run: Run,
    mine: Callable[[Location, int], bool],
    changes: Mapping[str, str] | None = None,
    least: Severity = Severity.INFO,
) -> Iterator[Outcome]:
    """A finding for each trace whose location is the rule's: `mine(location, step)`. `changes`: part of a call's name →
    what to do about it, in place of the rule's own change. `least`: its severity though later losses are finite."""
    for trace in run.traces:
        where, found = located(run, trace), onset(run, trace, GROWTH)
        if where is not None and mine(where.location, where.step):
            yield _finding(rule, where, found, changes or {}, least)
        elif where is not None:
            yield rule.passed(f"the first non-finite value is another one ({where.location.phase})")
        elif found is None:
            yield rule.passed(f"every loss and gradient of {trace.updates} updates was finite")
        else:
            yield rule.skipped("the first non-finite value was not located")


def _weight(severity: Severity) -> int:
    return -list(Severity).index(severity)


def _finding(rule: Rule, where: Located, found: Onset | None, changes: Mapping[str, str], least: Severity) -> Outcome:
    location = where.location
    grew = where.step == 0 or (found is not None and bool(found.grew))
    kept = f" The step is kept: whyloss replay {RUN_FOLDER}/{where.bundle}" if where.bundle else ""
    return rule.finding(
        f"at update {where.step} {_clause(location)}",
        *_evidence(where),
        severity=Severity.ERROR if found is None else max(found.severity, least, key=_weight),
        place=_place(location),
        first_step=where.step,
        certain=location.phase not in (Phase.MODEL_SIDE, Phase.OBJECTIVE_SIDE) and not location.doubts,
        explained_by=tuple(name for name in GROWN if name not in SYMPTOMS) if grew else (),
        change=_change(location, changes, rule.change),
        verify=rule.verify + kept,
    )


def _clause(location: Location) -> str:
    text = location.text.rstrip(".")
    return text[:1].lower() + text[1:]


def _evidence(where: Located) -> Iterator[Evidence]:
    """Ranges of what the call was given, what became of it, and what makes that doubtful."""
    location, steps = where.location, (where.step,)
    call = location.op or "the call"
    for i, given in enumerate(location.inputs[:MOST_INPUTS]):
        which = f"input {i}" if len(location.inputs) > 1 else "input"
        yield Evidence(f"{which} of {call}, {given.dtype}", str(given), None, "", steps)
    if location.became is not None:
        part = "gradient" if location.phase is Phase.BACKWARD else "result"
        what = "its values" if location.leaf is not None else f"{part} of {call}"
        yield Evidence(what, str(location.became), "finite", "", steps)
    for doubt in location.doubts:
        yield Evidence("doubt", doubt, None, "", steps)


def _place(location: Location) -> Place:
    return replace(location.place, module=location.module or location.place.module, op=location.op or None)


def _change(location: Location, changes: Mapping[str, str], otherwise: str) -> str:
    """By the longest part of a name that the ATen op's or the torch function's holds; a function of the user's own may
    be called anything."""
    if not location.op.startswith("torch."):
        return otherwise
    for call in (location.aten.rpartition("::")[2], location.op.rpartition(".")[2]):
        known = [part for part in changes if part in call.lower()]
        if known:
            return changes[max(known, key=len)]
    return otherwise


def sample_located(phase: Phase, step: int = 60, **location: Any) -> Run:
    """For the rules' examples: a run that is finite for 60 updates and then is not."""
    fields: dict[str, Any] = {
        "phase": phase,
        "text": "torch.log gives -inf from 0.",
        "op": "torch.log",
        "aten": "aten::log",
        "became": NonFinite(nan=0, positive=0, negative=1, elements=1),
    }
    run = sample_run(loss=np.r_[falling(60), np.full(60, np.nan)])
    return replace(run, located=(Located(trace=0, step=step, location=Location(**(fields | location))),))
