"""The lines of events-r<rank>.jsonl, as types: what stands in a line is checked before anything believes it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from whyloss.core.copies import Copy
from whyloss.core.errors import NothingToJudge
from whyloss.core.feed import Evaluation, Fed
from whyloss.core.finding import Place
from whyloss.core.kept import Kept
from whyloss.core.location import Located
from whyloss.core.probe import Probe
from whyloss.core.run import Call, Module, Objective, Tensor

FORMAT = 1

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


@dataclass(frozen=True, kw_only=True)
class Start:
    format: int = FORMAT
    script: str = ""
    arguments: tuple[str, ...] = ()
    torch: str = ""
    python: str = ""
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Built:
    place: Place


@dataclass(frozen=True, kw_only=True)
class Described:
    """An optimizer and its model, at the beginning of a segment of its tables or when more became known."""

    trace: Count
    segment: Annotated[int, msgspec.Meta(ge=-1)]  # -1: it has taken no step and has no tables
    optimizer: str
    place: Place
    step_place: Place
    settings: dict[str, float | str | bool | None]
    groups: Count
    model: str
    device: str = ""
    tensors: tuple[Tensor, ...]
    modules: tuple[Module, ...]
    skips: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class LossOp:
    trace: Count
    objective: Objective


@dataclass(frozen=True, kw_only=True)
class Order:
    trace: Count
    sequence: tuple[Call, ...]


@dataclass(frozen=True, kw_only=True)
class Recorded:
    """A step whose graph was written, into the file that trace, step and rank name."""

    trace: Count
    step: Count


@dataclass(frozen=True, kw_only=True)
class Waiting:
    backwards: Count
    loss: float
    weights_changed: bool
    place: Place


@dataclass(frozen=True, kw_only=True)
class SkippedUpdate:
    trace: Count
    step: Count
    scale: float | None = None


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The first time that run.log() has these names: each has the table metric<number>-r<rank>.rows."""

    tables: dict[str, Count]


@dataclass(frozen=True, kw_only=True)
class Limit:
    reason: str


@dataclass(frozen=True, kw_only=True)
class Detached:
    reason: str


@dataclass(frozen=True, kw_only=True)
class End:
    """Written by the process itself, or after its death by the one that started it. The last one counts."""

    how: str
    error: str = ""
    seconds: float | None = None
    observer_seconds: float | None = None


KINDS: dict[str, type] = {
    "start": Start,
    "built": Built,
    "trace": Described,
    "objective": LossOp,
    "order": Order,
    "graph": Recorded,
    "pending": Waiting,
    "skipped": SkippedUpdate,
    "metrics": Metrics,
    "nonfinite": Located,
    "fed": Fed,
    "evaluation": Evaluation,
    "kept": Kept,
    "probe": Probe,
    "copy": Copy,
    "limit": Limit,
    "detached": Detached,
    "end": End,
}

T = TypeVar("T")


def read_events(path: Path) -> tuple[object, ...]:
    """The events of a journal. Torn lines and kinds that this version does not know are passed over.

    NothingToJudge where no line is an event, or one is but holds what it can't.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        msg = f"can't read {path}: {error.strerror}"
        raise NothingToJudge(msg) from error
    events = tuple(_events(path, data))
    if not events:
        what = "no line of it is whyloss's" if data else "it is empty: the process ended before its first step"
        msg = f"{path} holds no training: {what}"
        raise NothingToJudge(msg)
    for start in of(events, Start):
        if start.format != FORMAT:
            msg = f"{path} has format {start.format}; this whyloss reads format {FORMAT}: use the version that wrote it"
            raise NothingToJudge(msg)
    return events


def of(events: Sequence[object], kind: type[T]) -> list[T]:
    return [e for e in events if isinstance(e, kind)]


def _events(path: Path, data: bytes) -> Iterator[object]:
    for number, line in enumerate(data.split(b"\n"), 1):
        try:
            event = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError):
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if not isinstance(kind, str) or kind not in KINDS:
            continue
        try:
            yield msgspec.convert(event, KINDS[kind], strict=False)  # not strict: "nan" and "inf" are floats
        except (msgspec.ValidationError, RecursionError) as error:
            msg = f"{path} is damaged: line {number}, {kind}: {error}"
            raise NothingToJudge(msg) from error
