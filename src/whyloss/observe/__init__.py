"""Attaches to a live training and writes what it does to a journal. torch lives here."""

from whyloss.observe.attach import Observation, attach
from whyloss.observe.tapes import TapeOptions

__all__ = ["Observation", "TapeOptions", "attach"]
