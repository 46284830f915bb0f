"""The order of events of each update, and the distinct orders that were seen."""

from whyloss.core.run import Call

Event = tuple[str, str | None, int | None]  # what, the user's file and line

MOST_CALLS = 48  # of one update; the step itself is always kept
MOST_RUN = 8  # the same call at the same line, over and over: what comes after these says nothing new
MOST_ORDERS = 32


class Calls:
    """Events of the update that is being made, and a number for each order that updates had."""

    def __init__(self) -> None:
        self._now: list[Event] = []
        self._orders: dict[tuple[Event, ...], int] = {}

    def add(self, what: str, file: str | None, line: int | None) -> None:
        event = (what, file, line)
        run = 1 if what == "scheduler" else MOST_RUN  # a chain of schedulers is one call of the user's
        if what != "step" and (len(self._now) >= MOST_CALLS or self._now[-run:] == [event] * run):
            return
        self._now.append(event)

    def close(self) -> int:
        """The number of the order of this update, -1 beyond MOST_ORDERS; the next update begins."""
        order, self._now = tuple(self._now), []
        if order not in self._orders and len(self._orders) < MOST_ORDERS:
            self._orders[order] = len(self._orders)
        return self._orders.get(order, -1)

    def forget(self) -> None:
        self._now = []

    def orders(self, start: int = 0) -> list[list[Call]]:
        return [[Call(*event) for event in order] for order in list(self._orders)[start:]]
