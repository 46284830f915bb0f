"""States of the generators of random numbers around a call."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from whyloss.tape.tape import Drawn


class GivenGenerator:
    """Stands on the tape where the user gave a generator of their own; its state is in `Op.drawn`."""

    def __repr__(self) -> str:
        return "GENERATOR"


GENERATOR = GivenGenerator()
States = list[tuple[str, torch.Tensor]]


def given_generator(kwargs: Mapping[str, Any]) -> torch.Generator | None:
    given = kwargs.get("generator")
    return given if isinstance(given, torch.Generator) else None


def states(tensors: Iterable[torch.Tensor], given: torch.Generator | None = None) -> States:
    """Those of the generators that a call with these tensors may draw from: the default ones, or the one given."""
    if given is not None:
        return [("", given.get_state())]
    found = [("cpu", torch.default_generator.get_state())]
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        devices = {t.device.index for t in tensors if t.device.type == "cuda"} | {torch.cuda.current_device()}
        found += [(f"cuda:{i}", torch.cuda.get_rng_state(i)) for i in sorted(devices)]
    return found


def restore_states(there: States) -> None:
    for device, state in there:
        if device == "cpu":
            torch.default_generator.set_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


def drawn(before: States, after: States) -> tuple[Drawn, ...]:
    """The generators that are no longer in the state in which they were before."""
    now = dict(after)
    return tuple(Drawn(d, s) for d, s in before if d in now and bytes(s.numpy()) != bytes(now[d].numpy()))
