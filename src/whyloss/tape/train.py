"""Trains on tapes with the user's own optimizer, on copies: nothing of the training that was recorded is touched."""

import inspect
import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.optim import Adagrad, Optimizer

from whyloss.tape.edit import Refused
from whyloss.tape.replay import Player, quiet
from whyloss.tape.tape import Leaf, Ref, Role, Setup, Tape, mapped


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What a training on tapes gave. Parameters go by name; one without a name by its place in the optimizer.

    `losses`: one a step, before its update; the sum where a step has several backward calls. `gradients`: norms at the
    first step, None where no gradient arrived. `parameters`: the final values.
    """

    losses: tuple[float, ...]
    gradients: Mapping[str, float | None]
    parameters: Mapping[str, torch.Tensor]

    def on(self, tape: Tape) -> dict[int, torch.Tensor]:
        """The final values by their numbers on a tape, as `replay` takes them."""
        keys = keys_of(tape)
        return {n: self.parameters[key] for n, key in keys.items() if key in self.parameters}


def train(
    tapes: Tape | Sequence[Tape],
    steps: int,
    *,
    state: Literal["fresh", "copied"] = "fresh",
    rate: float = 1.0,
    carry_buffers: bool = False,
    seconds: float = math.inf,
) -> Trained:
    """Runs `steps` updates on the tapes in turn. `state`: of the optimizer, as at its construction or as recorded.
    `rate`: what all learning rates are multiplied with. `carry_buffers`: each replay goes on with the buffers that the
    last one left; else with the recorded ones. `seconds`: no step begins that would pass them, taken as long as the
    longest one so far; of this thread alone, so that a busy machine makes as many.

    Gradients are cleared before every step. Parameters of several tapes are the same where their names are; each
    begins with the value that it has on the first tape that holds it. Refused where no optimizer was recorded, its
    state was not, or it can't be rebuilt. What an op raises passes through.
    """
    tapes = (tapes,) if isinstance(tapes, Tape) else tuple(tapes)
    setups = _setups(tapes, state)
    with ExitStack() as stack:
        for tape in reversed(tapes):
            stack.enter_context(quiet(tape))
        for kind in ("cpu", "cuda"):
            if torch.is_autocast_enabled(kind):
                stack.enter_context(torch.autocast(kind, enabled=False))
        parameters = _parameters(tapes)
        optimizer = _rebuilt(tapes, setups, parameters, state == "copied", rate)
        return _Training(tapes, parameters, optimizer, carry_buffers).run(steps, seconds)


class _Training:
    def __init__(
        self, tapes: Sequence[Tape], parameters: dict[str, torch.Tensor], optimizer: Optimizer, carry: bool
    ) -> None:
        self.parameters, self.optimizer, self.carry = parameters, optimizer, carry
        self.players = [Player(tape) for tape in tapes]
        self.given = [_given(tape, parameters) for tape in tapes]
        self.buffers: dict[str, torch.Tensor] = {}
        self.losses: list[torch.Tensor] = []
        self.gradients: dict[str, float | None] = {}

    def run(self, steps: int, seconds: float = math.inf) -> Trained:
        step = self._with_closure if _needs_closure(self.optimizer) else self._plainly
        began, longest = time.thread_time(), 0.0
        for i in range(steps):
            now = time.thread_time()
            if now + longest - began > seconds:
                break
            step(i % len(self.players))
            longest = max(longest, time.thread_time() - now)
        losses = torch.stack([t.double().cpu() for t in self.losses]).tolist() if self.losses else []
        final = {key: p.detach() for key, p in self.parameters.items()}
        return Trained(losses=tuple(losses), gradients=self.gradients, parameters=final)

    def _plainly(self, i: int) -> None:
        self.losses.append(self._evaluate(i))
        self.optimizer.step()

    def _with_closure(self, i: int) -> None:
        evaluated: list[torch.Tensor] = []

        def closure() -> torch.Tensor:
            evaluated.append(self._evaluate(i))
            return evaluated[-1]

        self.optimizer.step(closure)  # type: ignore[arg-type]
        self.losses.append(evaluated[0])

    def _evaluate(self, i: int) -> torch.Tensor:
        """Forward and backward; the loss."""
        player = self.players[i]
        for p in self.parameters.values():
            p.grad = None
        env = player.bind({**self.given[i], **self._carried(player.tape)} if self.carry else self.given[i])
        player.run(env)
        if self.carry:
            self.buffers |= {leaf.name: env[leaf.index] for leaf in _buffers(player.tape)}
        if not self.gradients:
            self.gradients = {key: _norm(p.grad) for key, p in self.parameters.items()}
        losses = [env[n].detach() for n in player.tape.losses]
        return losses[0] if len(losses) == 1 and losses[0].ndim == 0 else torch.stack([t.sum() for t in losses]).sum()

    def _carried(self, tape: Tape) -> dict[int, torch.Tensor]:
        return {leaf.index: self.buffers[leaf.name] for leaf in _buffers(tape) if leaf.name in self.buffers}


def keys_of(tape: Tape) -> dict[int, str]:
    """What the leaves that can be trained are called: by their names, else by their place in the optimizer."""
    places = {
        n: f"group {g}, parameter {i}"
        for g, group in enumerate(tape.setup.groups if tape.setup else ())
        for i, n in enumerate(group["params"])
    }
    return {
        n: leaf.name or places.get(n, f"leaf {n}")
        for n, leaf in tape.leaves.items()
        if leaf.requires_grad or n in places or leaf.role is Role.PARAMETER
    }


def _buffers(tape: Tape) -> tuple[Leaf, ...]:
    return tuple(leaf for leaf in tape.of(Role.BUFFER) if leaf.name and not leaf.requires_grad)


def _parameters(tapes: Sequence[Tape]) -> dict[str, torch.Tensor]:
    """A copy of each leaf that wants a gradient, as the first tape has it where its optimizer last saw it."""
    found: dict[str, torch.Tensor] = {}
    for tape in tapes:
        keys = keys_of(tape)
        held = {n for group in tape.setup.groups for n in group["params"]} if tape.setup else set()
        for n in sorted((n for n, leaf in tape.leaves.items() if leaf.requires_grad), key=lambda n: n not in held):
            if keys[n] not in found:
                found[keys[n]] = _copy(tape.leaves[n].value).requires_grad_()
    return found


def _copy(t: torch.Tensor) -> torch.Tensor:
    return t.detach().clone()


def _given(tape: Tape, parameters: Mapping[str, torch.Tensor]) -> dict[int, torch.Tensor]:
    """The trained tensors by number. A leaf that is frozen on this tape follows them without a gradient."""
    keys = keys_of(tape)
    return {
        n: parameters[key] if tape.leaves[n].requires_grad else parameters[key].detach()
        for n, key in keys.items()
        if key in parameters
    }


def _norm(gradient: torch.Tensor | None) -> float | None:
    if gradient is None:
        return None
    values = gradient.coalesce().values() if gradient.layout == torch.sparse_coo else gradient
    return float(torch.linalg.vector_norm(values))


# -- the optimizer


def _setups(tapes: Sequence[Tape], state: str) -> list[Setup]:
    setups = [tape.setup for tape in tapes if tape.setup is not None]
    if not tapes or len(setups) < len(tapes):
        msg = "no optimizer was recorded with the tape" if tapes else "there is no tape to train on"
        raise Refused(msg)
    if state == "copied" and any(s.state is None for s in setups):
        msg = "the state of the optimizer was not recorded with the tape"
        raise Refused(msg)
    if any(s.kind is not setups[0].kind or len(s.groups) != len(setups[0].groups) for s in setups):
        msg = "the tapes come from different optimizers"
        raise Refused(msg)
    if len({tape.dtype for tape in tapes}) > 1:
        msg = "the tapes were recorded under different default dtypes"
        raise Refused(msg)
    return setups


def _rebuilt(
    tapes: Sequence[Tape], setups: Sequence[Setup], parameters: Mapping[str, torch.Tensor], copied: bool, rate: float
) -> Optimizer:
    """The user's optimizer over other tensors, as if unpickled: its constructor may want what nobody recorded."""
    groups: list[dict[str, Any]] = [_settings(group, rate) for group in setups[0].groups]
    state: defaultdict[torch.Tensor, Any] = defaultdict(dict)
    seen: set[str] = set()
    for tape, setup in zip(tapes, setups, strict=True):
        keys = keys_of(tape)
        for group, recorded in zip(groups, setup.groups, strict=True):
            for n in recorded["params"]:
                if keys[n] in seen or keys[n] not in parameters:
                    continue
                seen.add(keys[n])
                p = parameters[keys[n]]
                group["params"].append(p)
                kept = setup.state.get(n) if copied and setup.state is not None else _constructed(setup.kind, group, p)
                if kept is not None:
                    state[p] = _fresh(dict(kept))
    keys = keys_of(tapes[0])
    attributes = _fresh(dict(setups[0].attributes), lambda ref: parameters[keys[ref.index]])
    kind: Any = setups[0].kind
    try:
        optimizer: Optimizer = kind.__new__(kind)
        optimizer.__setstate__({"defaults": {}, **attributes, "param_groups": groups, "state": state})
    except Exception as error:
        msg = f"{kind.__name__} can't be rebuilt: {type(error).__name__}: {error}"
        raise Refused(msg) from error
    return optimizer


def _settings(group: Mapping[str, Any], rate: float) -> dict[str, Any]:
    settings: dict[str, Any] = _fresh({k: v for k, v in group.items() if k != "params"})
    if rate != 1.0:
        if "lr" not in settings:
            msg = "a group of the optimizer has no learning rate to multiply"
            raise Refused(msg)
        settings["lr"] = settings["lr"] * rate
    return {"params": [], **settings}


def _constructed(kind: type, group: Mapping[str, Any], p: torch.Tensor) -> dict[str, Any] | None:
    """What an optimizer keeps for a parameter before its first step: nothing, but for Adagrad."""
    if not issubclass(kind, Adagrad):
        return None
    start = group["initial_accumulator_value"]
    dtype = torch.get_default_dtype() if not group["fused"] else torch.float32
    filled = torch.full_like(p.detach(), complex(start, start) if p.is_complex() else start)
    return {"step": torch.zeros((), dtype=dtype, device=p.device if group["fused"] else "cpu"), "sum": filled}


def _fresh(tree: Any, parameter: Callable[[Ref], torch.Tensor] | None = None) -> Any:
    """With copies of all tensors; and, where asked for, parameters for Refs."""

    def change(item: torch.Tensor | Ref) -> torch.Tensor:
        if isinstance(item, Ref):
            assert parameter is not None
            return parameter(item)
        return _copy(item)

    return mapped(tree, change, (torch.Tensor, Ref))


def _needs_closure(optimizer: Optimizer) -> bool:
    """Whether step() can't be called without one, as that of LBFGS."""
    try:
        closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    except (TypeError, ValueError):
        return False
    return closure is not None and closure.default is inspect.Parameter.empty
