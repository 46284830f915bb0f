"""The result of a diagnosis. Text and JSON are two renderings of the same Report."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from whyloss.core.finding import Boundary, Evidence, Passed, Place, Severity, Skipped

Status = Literal["confirmed", "supported", "untested"]
Verdict = Literal["causes", "healthy", "unclear", "nothing-seen"]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """One entry of the report. `confirmed`: shown by structure or exact arithmetic. `supported`: by a statistic of what
    was observed. `untested`: a symptom that no observed cause explains."""

    name: str
    status: Status
    severity: Severity
    boundary: Boundary
    message: str
    place: Place
    first_step: int
    evidence: tuple[Evidence, ...]
    explains: tuple[str, ...]  # symptoms found in this run that it accounts for
    change: str
    verify: str


@dataclass(frozen=True, kw_only=True)
class Symptom:
    """A finding that a cause above explains."""

    name: str
    message: str
    explained_by: str


@dataclass(frozen=True, kw_only=True)
class RuledOut:
    """A cause that could have explained what was seen, and what was observed instead."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Training:
    """Facts of the run, as far as they were seen."""

    script: str
    end: str
    error: str
    steps: int
    optimizers: tuple[str, ...]
    model: str
    rates: tuple[float, ...]  # of the last update, a rate a parameter group
    seeds: tuple[int, ...]
    dtype: str
    device: str
    torch: str
    python: str
    losses: tuple[float | None, float | None]  # first and last; None where not finite or not seen


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What observing cost, measured in the training's own process."""

    seconds: float  # of the training, from its first backward pass
    observer_seconds: float
    first_step_seconds: float  # of these, once, at the first update: finding the model and naming its tensors
    share_of_later_steps: float | None  # of the time of all later updates; None for fewer than two


@dataclass(frozen=True, kw_only=True)
class Report:
    """What whyloss says of a run."""

    schema: int = 1
    verdict: Verdict
    headline: str
    causes: tuple[Cause, ...] = ()
    symptoms: tuple[Symptom, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    passed: tuple[Passed, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    training: Training
    metrics: Mapping[str, tuple[float | None, float | None]] = field(
        default_factory=dict
    )  # run.log() and loss/eval[i]: first, last
    cost: Cost
    folder: str = ""

    @property
    def alarms(self) -> tuple[Cause, ...]:
        return tuple(c for c in self.causes if c.severity.alarm)
