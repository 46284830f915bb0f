"""whyloss finds out why a neural network won't learn. `import whyloss` loads NumPy and no torch."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from whyloss.core.clipping import clip_by_norm as clip_by_norm
    from whyloss.core.clipping import clip_by_value as clip_by_value
    from whyloss.core.errors import Misuse as Misuse
    from whyloss.core.errors import NothingToJudge as NothingToJudge
    from whyloss.core.errors import WhylossError as WhylossError
    from whyloss.core.report import Report as Report
    from whyloss.core.run import Run as Run
    from whyloss.diagnosis import diagnose as diagnose
    from whyloss.journal import read_run as read_run
    from whyloss.live import watch as watch

__version__ = "0.1.0"

_PUBLIC = {
    "Misuse": "whyloss.core.errors",
    "NothingToJudge": "whyloss.core.errors",
    "Report": "whyloss.core.report",
    "Run": "whyloss.core.run",
    "WhylossError": "whyloss.core.errors",
    "clip_by_norm": "whyloss.core.clipping",
    "clip_by_value": "whyloss.core.clipping",
    "diagnose": "whyloss.diagnosis.diagnose",
    "read_run": "whyloss.journal",
    "watch": "whyloss.live.watch",
}
__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    """Public names are loaded when they are used."""
    if name not in _PUBLIC:
        msg = f"module 'whyloss' has no attribute '{name}'"
        raise AttributeError(msg)
    return getattr(import_module(_PUBLIC[name]), name)
