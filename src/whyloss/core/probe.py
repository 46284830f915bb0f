"""What a small experiment on a recorded step showed, as plain data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from whyloss.core.finding import Place


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The step was replayed with one thing changed. `outcome` says in a word what that did; empty where the experiment
    was not made, and `reason` says why not. `subject`: what was looked at, a function or an input."""

    name: str
    trace: int
    step: int
    outcome: str = ""
    reason: str = ""
    subject: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    place: Place = Place()
    seconds: float = 0.0

    def number(self, name: str) -> float:
        """NaN where it was not measured."""
        return self.numbers.get(name, float("nan"))


def made(probes: Iterable[Probe], trace: int, name: str) -> tuple[Probe, ...]:
    """Those of one kind that were made, by step."""
    mine = (p for p in probes if p.trace == trace and p.name == name and p.outcome)
    return tuple(sorted(mine, key=lambda p: p.step))


def why_not(probes: Iterable[Probe], trace: int, name: str) -> str:
    """Why none of a kind was made."""
    reasons = [p.reason for p in probes if p.trace == trace and p.name == name and p.reason]
    return reasons[-1] if reasons else "needs a recorded step that was replayed with something changed"
