"""From a Run to a Report: run the rules, fold consequences under their roots, rank what stands."""

from whyloss.diagnosis.diagnose import diagnose

__all__ = ["diagnose"]
