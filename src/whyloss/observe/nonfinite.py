"""What is said of an update that turns non-finite, beyond what its tape tells."""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch

from whyloss.core.location import Location, Phase
from whyloss.observe.optimizer import OptimizerWatch
from whyloss.tape.numbers import tensors
from whyloss.tape.tape import Role

MOST_NODES = 6  # named where nothing better is known


def at_update(watches: Iterable[OptimizerWatch], found: Location) -> Location:
    """A parameter that is non-finite before a step: the update before made it so, if there was one."""
    if found.phase is not Phase.LEAF or found.leaf is None or found.leaf.role != Role.PARAMETER:
        return found
    watch = next((w for w in watches if w.step and _holds(w, found.leaf.name)), None)
    if watch is None:
        return found
    why = _why(watch)
    text = f"The update of step {watch.step - 1} left {found.leaf.values} in {found.leaf.name}"
    place = replace(watch.step_place, parameter=found.leaf.name)
    return replace(found, phase=Phase.UPDATE, text=f"{text}{f': {why}' if why else ''}.", place=place)


def _holds(watch: OptimizerWatch, name: str) -> bool:
    """Whether the optimizer updates a parameter of this name that is not finite. Two models may have the same names."""
    return any(t.name == name and t.in_optimizer and not p.isfinite().all() for t, p in watch.tensors)


def _why(watch: OptimizerWatch) -> str:
    """What of the optimizer's settings makes an update non-finite; "" nothing that can be told."""
    for g, group in enumerate(watch.groups):
        for name, value in group.items():
            if isinstance(value, float | torch.Tensor) and not math.isfinite(float(value)):
                return f"{name} of its group {g} is {float(value)}"
        kinds = {p.dtype for p in group["params"] if p.dtype in (torch.float16, torch.bfloat16)}
        for kind in kinds:
            eps = group.get("eps")
            if isinstance(eps, float) and float(torch.tensor(eps, dtype=kind)) == 0:
                return f"eps={eps:g} is 0 in {str(kind).removeprefix('torch.')}"
    return ""


def by_side(location: Location, *, finite: bool, nodes: list[str]) -> Location:
    """On which side of the model's output it lies, where nothing better is known. `finite`: that output is."""
    phase = Phase.OBJECTIVE_SIDE if finite else Phase.MODEL_SIDE
    where = "finite: the loss made of it is not" if finite else "already non-finite"
    ends = f" Backward begins with {', '.join(nodes)}." if nodes else ""
    return replace(location, phase=phase, text=f"The output of the model is {where}.{ends}")


def nodes_of(given: Any) -> list[str]:
    """Names of the autograd nodes next to the loss."""
    names: list[str] = []
    node = next((t.grad_fn for t in tensors(given) if t.grad_fn is not None), None)
    while node is not None and len(names) < MOST_NODES:
        names.append(node.name())
        node = node.next_functions[0][0] if node.next_functions else None
    return names
