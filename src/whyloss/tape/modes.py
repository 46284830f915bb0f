"""Our place on torch's stack of function modes: below every mode of the user's, whatever they enter and leave.

A block like `with torch.device(...)` or a mode of the user's pops what is on top when it ends. What lies at the bottom
is never taken for theirs. Only the default device lies lower still, where torch itself wants it.
"""

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode
from torch.utils._device import DeviceContext


def insert_mode(mode: TorchFunctionMode) -> None:
    """Puts the mode at the bottom, above the default device if one is set."""
    above = _take_all()
    under = [m for m in above if isinstance(m, DeviceContext)]
    _put_all([*under, mode, *(m for m in above if not isinstance(m, DeviceContext))])


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
