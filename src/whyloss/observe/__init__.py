"""Attaches to a live training and writes what it does to a journal. torch lives here."""

from whyloss.observe.attach import Observation, attach

__all__ = ["Observation", "attach"]
