"""Where batches come from: data sets that DataLoaders iterate over, told apart by the line that iterates."""

from dataclasses import dataclass, field, replace
from typing import Any

from whyloss.core.feed import Loader
from whyloss.core.finding import Place
from whyloss.core.lines import place_at, user_line

MOST_SOURCES = 32


@dataclass
class Source:
    """A data set that loaders at one line iterate over, and the round it is in."""

    facts: Loader
    iterator: int = 0  # id of the one that gives batches now
    rounds: int = 0
    batches: int = 0
    trained: int = 0  # batches of it that were trained on
    seen: set[int] = field(default_factory=set)  # whole batches of this round

    def loader(self) -> Loader:
        return replace(self.facts, rounds=self.rounds, batches=self.batches)


class Loaders:
    """`fresh` is the source whose batch no pass has had yet."""

    def __init__(self) -> None:
        self._sources: dict[Any, Source] = {}
        self._fresh: Source | None = None

    def iterates(self, loader: Any, iterator: Any) -> None:
        """A loader was asked for an iterator."""
        for other in self._sources.values():
            other.iterator = 0 if other.iterator == id(iterator) else other.iterator
        line = user_line()
        key = (id(getattr(loader, "dataset", loader)), line)
        if key not in self._sources and len(self._sources) >= MOST_SOURCES:
            return
        source = self._sources.setdefault(key, Source(_describe(loader, place_at(*line))))
        source.iterator = id(iterator)
        source.rounds += 1
        source.seen.clear()

    def gives(self, iterator: Any) -> None:
        """An iterator gave a batch."""
        source = next((s for s in self._sources.values() if s.iterator == id(iterator)), None)
        if source is not None:
            source.batches += 1
            self._fresh = source

    def take(self) -> Source | None:
        """Whose batch this pass has."""
        fresh, self._fresh = self._fresh, None
        return fresh

    @property
    def main(self) -> Source | None:
        """The one that most of the training batches came from."""
        trained = [s for s in self._sources.values() if s.trained]
        return max(trained, key=lambda s: s.trained, default=None)


def _describe(loader: Any, place: Place) -> Loader:
    sampler = getattr(loader, "sampler", None)
    inner = getattr(getattr(loader, "batch_sampler", None), "sampler", sampler)
    return Loader(
        examples=_length(getattr(loader, "dataset", None)),
        batch=getattr(loader, "batch_size", None),
        sampler=type(inner).__name__,
        replacement=bool(getattr(inner, "replacement", False)),
        workers=int(getattr(loader, "num_workers", 0) or 0),
        place=place,
    )


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001 - the user's __len__, or none
        return None
