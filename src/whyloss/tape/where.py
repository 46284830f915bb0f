"""Where a call is made: the innermost module, the user's line, the library's line in between; and for which root."""

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from whyloss.core.finding import Place
from whyloss.core.lines import is_user_file, place_at

_CALL = nn.Module._wrapped_call_impl.__code__  # a frame of it stands on the stack for each module that runs
_TORCH = f"{os.sep}torch{os.sep}"


def again(run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Runs something once more: what stands below this frame on the stack is not where it ran the first time."""
    return run(*args, **kwargs)


def where(paths: Mapping[int, str], outer: Place | None = None) -> tuple[str | None, Place, str]:
    """Path of the innermost module that has one (None: none runs), the user's place, file:line of the library. `outer`
    is the place of what is run by `again`."""
    module: str | None = None
    place, inner = Place(), ""
    for frame in _frames():
        code = frame.f_code
        if code is again.__code__ and outer is not None:
            return module, place if place.file is not None else outer, inner
        if code is _CALL:
            module = paths.get(id(frame.f_locals["self"])) if module is None else module
        elif place.file is None:
            file = code.co_filename
            if is_user_file(file):
                place = place_at(file, frame.f_lineno)
            elif not inner and _TORCH not in file and "whyloss" not in file:
                inner = f"{file}:{frame.f_lineno}"
        if place.file is not None and module is not None:
            break
    return module, place, inner


def running_root(paths: Mapping[int, str]) -> FrameType | None:
    """The frame in which the outermost running module is called."""
    root: FrameType | None = None
    for frame in _frames():
        if frame.f_code is _CALL and id(frame.f_locals["self"]) in paths:
            root = frame
    return root


def inputs_of(root: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that a running module was given, each under the name that its forward has for it."""
    given = root.f_locals
    yield from _arguments(given["self"], given["args"], given["kwargs"])


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _arguments(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """x, batch[0], batch['labels']."""
    try:
        names = [p.name for p in inspect.signature(module.forward).parameters.values()]
    except (TypeError, ValueError):
        names = []
    positional = {names[i] if i < len(names) else f"args[{i}]": a for i, a in enumerate(args)}
    for name, value in {**positional, **kwargs}.items():
        yield from _within(name, value)


def _within(name: str, tree: Any) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(tree, torch.Tensor):
        yield name, tree
    elif isinstance(tree, Mapping):
        for key, item in tree.items():
            yield from _within(f"{name}[{key!r}]", item)
    elif isinstance(tree, tuple | list):
        for i, item in enumerate(tree):
            yield from _within(f"{name}[{i}]", item)
