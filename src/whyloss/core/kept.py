"""Graphs of losses that are still there although their backward pass is over."""

from dataclasses import dataclass

from whyloss.core.finding import Place


@dataclass(frozen=True, kw_only=True)
class Kept:
    """At one moment. `alive`: of the `made` losses that backward() was called of, how many still have their graph."""

    made: int
    alive: int
    step: int = 0  # updates done
    place: Place = Place()  # a line of the loop that keeps losses, by its text; empty where none looks like it
