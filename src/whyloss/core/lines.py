"""The user's own line behind a call: the innermost frame outside torch, frameworks and whyloss."""

import ast
import inspect
import linecache
import os
import sys
import sysconfig
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import islice
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

MOST_FRAMES = 8  # of the user's, in which the name of a variable is sought


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


def user_frames(start: FrameType | None) -> Iterator[FrameType]:
    """All frames of the user's code, innermost first."""
    frame = user_frame(start) if start is not None else None
    while frame is not None:
        yield frame
        frame = user_frame(frame.f_back) if frame.f_back is not None else None


def variable_names(frames: Iterable[FrameType], objects: Sequence[object]) -> dict[int, str]:
    """id(object) → the name that the user's code has for it: a global, or the one variable that gets such an object.

    The local variables themselves are not read: before Python 3.13 that would change what locals() has given the user.
    """
    names: dict[int, str] = {}
    kinds = Counter(type(o).__name__ for o in objects)
    for frame in islice(frames, MOST_FRAMES):
        written = _assigned(frame)
        known = {id(v): k for k, v in list(frame.f_globals.items()) if not k.startswith("_")}
        for thing in objects:
            kind = type(thing).__name__
            local = written.get(kind, ()) if kinds[kind] == 1 else ()
            name = known.get(id(thing)) or (local[0] if len(local) == 1 else None)
            if name is not None:
                names.setdefault(id(thing), name)
    return names


def _assigned(frame: FrameType) -> dict[str, list[str]]:
    """Class → variables to which the frame's function assigns a call of it."""
    file, code = frame.f_code.co_filename, frame.f_code
    if not code.co_flags & inspect.CO_NEWLOCALS:
        return {}  # of a module: its variables are the globals
    lines = inspect.getblock(linecache.getlines(file)[code.co_firstlineno - 1 :])
    found: dict[str, list[str]] = {}
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        return {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target, value in _pairs(node):
                found.setdefault(_called(value), []).append(target)
    return found


def _pairs(node: ast.Assign) -> Iterator[tuple[str, ast.expr]]:
    """Variable and value of `a = …` and `a, b = …, …`."""
    for target in node.targets:
        if isinstance(target, ast.Name):
            yield target.id, node.value
        elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = zip(target.elts, node.value.elts, strict=False)
            yield from ((t.id, v) for t, v in pairs if isinstance(t, ast.Name))


def _called(value: ast.expr) -> str:
    """`Net` for Net(…), models.Net(…) and Net(…).to(device)."""
    while isinstance(value, ast.Call):
        function = value.func
        if isinstance(function, ast.Name):
            return function.id
        if not isinstance(function, ast.Attribute):
            return ""
        if not isinstance(function.value, ast.Call):
            return function.attr
        value = function.value
    return ""
