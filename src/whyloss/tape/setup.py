"""The optimizer of a step as data: which parameters with which settings, and what it keeps for them."""

import copy
from collections.abc import Mapping
from typing import Any

import torch

from whyloss.tape.record import Recorder
from whyloss.tape.tape import Ref, Setup

PLAIN = (bool, int, float, complex, str, type(None), torch.dtype, torch.device, torch.Tensor, Ref)


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
    return Setup(kind=type(optimizer), groups=groups, state=kept, attributes=_attributes(optimizer, numbers))


def _attributes(optimizer: torch.optim.Optimizer, numbers: Mapping[int, int]) -> dict[str, Any]:
    """What else the optimizer holds, without what may be tied to the training: hooks, functions, other objects."""
    kept = {}
    for name, value in vars(optimizer).items():
        if name not in ("param_groups", "state") and not name.startswith("_optimizer_") and _plain(value):
            kept[name] = _numbered(value, numbers)
    return kept


def _plain(value: Any) -> bool:
    if type(value) is dict:
        return all(_plain(item) for item in value.values())
    if type(value) in (list, tuple):
        return all(_plain(item) for item in value)
    return isinstance(value, PLAIN)


def _numbered(value: Any, numbers: Mapping[int, int]) -> Any:
    if isinstance(value, torch.Tensor):
        return Ref(numbers[id(value)]) if id(value) in numbers else value.detach().clone()
    if isinstance(value, dict):
        return {k: _numbered(item, numbers) for k, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_numbered(item, numbers) for item in value)
    return value


def _of(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copied(value) for key, value in state.items()}


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    return copy.deepcopy(value) if isinstance(value, list | dict | tuple) else value
