"""What a rule can say of a run: a Finding, that it Passed, or that it was Skipped."""

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """error: the training cannot be right as it stands. warning: it hurts, on evidence. info: never an alarm."""

    ERROR = "error"
    WARNING = "warning"
    INFO = "info"

    @property
    def alarm(self) -> bool:
        return self is not Severity.INFO


class Boundary(StrEnum):
    """Where training first goes wrong, in the order in which a step passes them; then what numbers over time show, and
    evaluation."""

    DATA = "data"
    FORWARD = "forward"
    OBJECTIVE = "objective"
    BACKWARD = "backward"
    UPDATE = "update"
    CURVE = "curve"
    EVALUATION = "evaluation"

    @property
    def order(self) -> int:
        return list(Boundary).index(self)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where: the network's names for it and the user's own line. Empty where not known."""

    module: str | None = None
    parameter: str | None = None
    op: str | None = None
    file: str | None = None
    line: int | None = None
    source: str | None = None

    def __str__(self) -> str:
        name = self.parameter or self.module or self.op
        line = f"{self.file}:{self.line}" if self.file else None
        return ", ".join(part for part in (name, line) if part)


@dataclass(frozen=True)
class Evidence:
    """One measured figure beside the limit it was held against, in one unit, at the steps where it was seen."""

    what: str
    observed: float | str
    limit: float | str | None = None
    unit: str = ""
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule saw. `certain`: shown by structure or exact arithmetic, not by a statistic.

    A `symptom` may be explained by a cause; `explains` and `explained_by` name the other side of that relation,
    so that a new cause or a new symptom each stands in one file.
    """

    name: str
    boundary: Boundary
    severity: Severity
    message: str
    evidence: tuple[Evidence, ...]
    place: Place = Place()
    first_step: int = 0
    certain: bool = False
    symptom: bool = False
    explains: tuple[str, ...] = ()
    explained_by: tuple[str, ...] = ()
    change: str = ""
    verify: str = ""


@dataclass(frozen=True)
class Passed:
    """The rule had what it needs and saw nothing wrong; `observed` says what it saw, in one clause."""

    rule: str
    observed: str


@dataclass(frozen=True)
class Skipped:
    """The rule could not judge. Silence for lack of a signal must not read as health."""

    rule: str
    reason: str


Outcome = Finding | Passed | Skipped
