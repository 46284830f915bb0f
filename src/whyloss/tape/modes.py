"""Our place on torch's stack of function modes: below every mode of the user's, whatever they enter and leave.

A block like `with torch.device(...)` or a mode of the user's pops what is on top when it ends. What lies at the bottom
is never taken for theirs. Only the default device lies lower still, where torch itself wants it; what a block like
the one above has put there looks the same, but is on top of the stack when it ends.
"""

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode


def insert_mode(mode: TorchFunctionMode) -> None:
    """Puts the mode at the bottom, above the default device if one is set."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    there = _take_all()
    _put_all([*(m for m in there if m is default), mode, *(m for m in there if m is not default)])


def remove_mode(mode: TorchFunctionMode) -> None:
    """Takes the mode out, wherever it is; nothing happens where it is not there."""
    _put_all([m for m in _take_all() if m is not mode])


def _take_all() -> list[TorchFunctionMode]:
    """Empties the stack; what was at its bottom comes first."""
    taken = [_pop_mode() for _ in range(torch._C._len_torch_function_stack())]  # type: ignore[no-untyped-call]
    return taken[::-1]


def _put_all(modes: list[TorchFunctionMode]) -> None:
    for mode in modes:
        _push_mode(mode)  # type: ignore[no-untyped-call]
