"""The optimizer of a step as data: which parameters with which settings, and what it keeps for them."""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from whyloss.tape.record import Recorder
from whyloss.tape.tape import Setup


def setup_of(optimizer: torch.optim.Optimizer, recorder: Recorder, *, state: bool) -> Setup:
    """Groups with the numbers of those parameters that are on the tape. `state`: with a copy of the moments."""
    numbers = {id(t): n for n, t in recorder.live()}
    groups = tuple(
        {
            **{k: _copied(v) for k, v in g.items() if k != "params"},
            "params": [numbers[id(p)] for p in g["params"] if id(p) in numbers],
        }
        for g in optimizer.param_groups
    )
    kept = {numbers[id(p)]: _of(s) for p, s in optimizer.state.items() if id(p) in numbers} if state else None
    return Setup(kind=type(optimizer), groups=groups, state=kept)


def _of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in state.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if isinstance(value, list | dict | tuple) else value
