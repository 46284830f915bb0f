"""Wires a running loop to the rest: start, announce, diagnose at the end, write the report."""

from whyloss.live.watch import Watch, watch

__all__ = ["Watch", "watch"]
