"""From a Run to a Report: run the rules, fold consequences under their roots, rank what stands."""

import sys
from types import ModuleType

from whyloss.core.report import Report
from whyloss.core.run import Run
from whyloss.diagnose.diagnose import diagnose

__all__ = ["diagnose"]


class _Callable(ModuleType):
    """`whyloss.diagnose` is a public function and, once something imported it, this package: it is both."""

    def __call__(self, run: Run, *, folder: str = "") -> Report:
        return diagnose(run, folder=folder)


sys.modules[__name__].__class__ = _Callable
