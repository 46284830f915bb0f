"""Graphs of losses that are still there although their backward pass is over."""

from dataclasses import dataclass

from whyloss.core.finding import Place


@dataclass(frozen=True, kw_only=True)
class Kept:
    """At one moment. `alive`: of the `made` losses that backward() was called of, how many still have their graph."""

    made: int
    alive: int
    early: int = 0  # of these `alive`, how many belong to the earlier half of all that were made
    nodes: int = 0  # of the graph of the last loss
    step: int = 0  # updates done
    place: Place = Place()  # a line of the loop that keeps losses, by its text; empty where none looks like it
