"""What every rule is: a frozen dataclass whose docstring is its page and whose fields are its thresholds."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Passed, Place, Severity, Skipped
from whyloss.core.run import Run, Trace

RUN_FOLDER = "<run>"  # in a finding's text: the report puts the run's folder there


def threshold(default: float, *, unit: str, why: str) -> Any:
    """A dataclass field that holds a limit, with its unit and the measured reason for it."""
    return dataclasses.field(default=default, metadata={"unit": unit, "why": why})


@dataclass(frozen=True)
class Example:
    """A run on which the rule must fire, or must stay silent (no alarm); `info` allows an info finding."""

    title: str
    run: Run
    fires: bool
    severity: Severity | None = None


def fires(title: str, run: Run, severity: Severity | None = None) -> Example:
    return Example(title, run, fires=True, severity=severity)


def silent(title: str, run: Run) -> Example:
    """No error and no warning; an info finding is silence."""
    return Example(title, run, fires=False)


@dataclass(frozen=True)
class Rule:
    """Base of all rules. A subclass sets the class attributes and writes `check_trace`, or `check` for a whole run."""

    name: ClassVar[str]
    boundary: ClassVar[Boundary]
    symptom: ClassVar[bool] = False
    explains: ClassVar[tuple[str, ...]] = ()
    explained_by: ClassVar[tuple[str, ...]] = ()
    change: ClassVar[str]
    verify: ClassVar[str]
    references: ClassVar[tuple[str, ...]] = ()

    def check(self, run: Run) -> Iterator[Outcome]:
        """Findings; else one Passed or Skipped a trace. Never raises, whatever the run holds."""
        for trace in run.traces:
            yield from self.check_trace(trace)

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        raise NotImplementedError

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        raise NotImplementedError

    def finding(
        self,
        message: str,
        *evidence: Evidence,
        severity: Severity,
        place: Place | None = None,
        first_step: int = 0,
        certain: bool = False,
        **overrides: Any,
    ) -> Finding:
        """A finding of this rule; `overrides` replaces explains, change, verify or symptom for this one case."""
        fixed = {k: getattr(self, k) for k in ("symptom", "explains", "explained_by", "change", "verify")} | overrides
        return Finding(
            name=self.name,
            boundary=self.boundary,
            severity=severity,
            message=message,
            evidence=evidence,
            place=place or Place(),
            first_step=first_step,
            certain=certain,
            **fixed,
        )

    def passed(self, observed: str) -> Passed:
        return Passed(self.name, observed)

    def skipped(self, reason: str) -> Skipped:
        return Skipped(self.name, reason)
