"""The user's own line behind a call: the innermost frame outside torch, frameworks and whyloss."""

import linecache
import os
import sys
import sysconfig
from functools import cache
from types import FrameType

from whyloss.core.finding import Place

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    {
        os.path.join(p, "")
        for k, p in sysconfig.get_paths().items()
        if k in ("stdlib", "platstdlib", "purelib", "platlib")
    }
)


@cache
def is_user_file(file: str) -> bool:
    """False for torch, other installed packages, the standard library, whyloss and generated code."""
    if file.startswith("<") and not file.startswith("<ipython"):
        return False
    path = os.path.abspath(file)
    return not path.startswith((_OURS, *_LIBRARIES)) and f"{os.sep}site-packages{os.sep}" not in path


def user_frame(start: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user's code, or None (a library's own loop)."""
    frame = start or sys._getframe(1)
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back  # type: ignore[assignment]
    return frame


def user_line() -> tuple[str | None, int | None]:
    """File and line; microseconds, nothing is read from disk."""
    frame = user_frame(sys._getframe(1))
    return (frame.f_code.co_filename, frame.f_lineno) if frame else (None, None)


def user_place() -> Place:
    """File, line and the line's text."""
    file, line = user_line()
    return place_at(file, line)


def place_at(file: str | None, line: int | None) -> Place:
    if file is None or line is None:
        return Place()
    return Place(file=file, line=line, source=linecache.getline(file, line).strip() or None)


def variable_names(frame: FrameType | None) -> dict[int, str]:
    """id(object) → the name that the user's frame has for it."""
    if frame is None:
        return {}
    return {id(v): k for scope in (frame.f_globals, frame.f_locals) for k, v in scope.items() if not k.startswith("_")}
