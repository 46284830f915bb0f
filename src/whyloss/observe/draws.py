"""Dropout that drops in evaluation mode, seen while one forward pass runs."""

import sys
from typing import Any

from torch.overrides import TorchFunctionMode

from whyloss.core.feed import Draw
from whyloss.core.lines import place_at, user_line
from whyloss.core.step_graph import DROPOUTS

MOST = 8
_ATTENTION = "scaled_dot_product_attention"


class Draws(TorchFunctionMode):
    """Notes the dropout calls that are in effect; changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Draw] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").strip("_")
        if (name in DROPOUTS or name == _ATTENTION) and len(self.seen) < MOST:
            p = _share(name, args, kwargs)
            if p > 0:
                self.seen.append(Draw(call=name, own_mode=_by_module(), p=p, place=place_at(*user_line())))
        return func(*args, **kwargs)


def _share(name: str, args: Any, kwargs: Any) -> float:
    """The share that the call drops; 0 where it is told not to."""
    if name == _ATTENTION:
        return float(kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0))
    on = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return float(kwargs.get("p", args[1] if len(args) > 1 else 0.5)) if on else 0.0


def _by_module() -> bool:
    """Whether a module of torch's made the call, which follows its own mode."""
    frame = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename.replace("\\", "/")
        if "/torch/nn/modules/" in file:
            return True
        if "/torch/" not in file:
            return False
        frame = frame.f_back  # type: ignore[assignment]
    return False
