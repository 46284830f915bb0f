"""What all small experiments share: the recorded step, ready to be played with other inputs, and the time that is left.

Forward only, without gradients, with the numbers that were drawn when it was recorded, and with batch norms on their
running statistics, so that an example meets no other by way of those.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod
from typing import Any

import torch

from whyloss.core import step_graph as plain
from whyloss.core.compared import Pair, pairs
from whyloss.core.finding import Place
from whyloss.core.probe import Probe
from whyloss.core.step_graph import GRAD, StepGraph
from whyloss.tape.graph import step_graph
from whyloss.tape.labels import with_labels
from whyloss.tape.replay import Player, quiet
from whyloss.tape.tape import BACKWARD, READS, Context, Leaf, Op, Role, Tape

ROUNDING = 64.0  # units in the last place: what the order of a sum may change
MOST_BYTES = 2**28  # of values that are kept for a comparison
Made = Mapping[int, torch.Tensor]


class NotMade(Exception):
    """An experiment was not made. Says why."""


class Bench:
    """One recorded step. `cost`: seconds that one replay is thought to take; `seconds`: what all may take together, of
    this thread alone: what is found should not hang on how busy the machine is.
    `given`: how many tensors the model was called with, where that is known."""

    def __init__(self, tape: Tape, cost: float, seconds: float, given: int = 0) -> None:
        self.tape, self.cost, self.left, self.given = with_labels(tape), cost, seconds, given
        self.graph: StepGraph = step_graph(self.tape)
        self.leaves_torch = any(
            prod(tape.values[n].shape) > 1 for op in tape.aside if op.name in READS for n in op.inputs
        )
        self.generator = torch.Generator().manual_seed(20230301)  # the user's own is never drawn from
        self._players: dict[frozenset[int], Player] = {}

    def made(
        self, name: str, outcome: str, numbers: Mapping[str, float], *, subject: str = "", place: Place = Place()
    ) -> Probe:
        return Probe(
            name=name,
            trace=self.tape.trace,
            step=self.tape.step,
            outcome=outcome,
            subject=subject,
            numbers={k: float(v) for k, v in numbers.items()},
            place=place,
        )

    # -- playing

    def play(
        self,
        leaves: Mapping[int, torch.Tensor] | None = None,
        keep: Iterable[int] = (),
        held: Mapping[int, torch.Tensor] | None = None,
    ) -> Made:
        """The values with these numbers, as the step makes them of other leaves. `held`: values that stay what they
        are given as here, whatever the step makes of them."""
        self.afford(self.cost)
        began, wanted = time.thread_time(), frozenset(keep)
        try:
            with quiet(self.tape):
                player = self._players.get(wanted) or self._players.setdefault(wanted, Player(self.still, wanted))
                env = player.bind(leaves or {})
                player.run(env, backward=False, then=_holding(env, held) if held else None)
                return {n: env[n].detach() for n in wanted}
        finally:
            self.spend(time.thread_time() - began)

    def afford(self, seconds: float) -> None:
        if seconds > self.left:
            msg = f"a replay takes {seconds:.2g} s, and {max(self.left, 0):.2g} s are left for experiments on this step"
            raise NotMade(msg)

    def spend(self, seconds: float) -> None:
        self.left -= seconds
        self.cost = max(seconds, self.cost / 2)  # a guess gives way to what was measured

    @cached_property
    def still(self) -> Tape:
        """The step without backward, gradients and batch statistics."""
        if any(op.name == GRAD for op in self.tape.ops):
            msg = "the step takes gradients within its forward pass"
            raise NotMade(msg)
        ops = tuple(_stilled(op) for op in self.tape.ops if op.name != BACKWARD)
        return replace(self.tape, ops=ops)

    # -- what the step compares and what it was given

    @cached_property
    def pairs(self) -> tuple[Pair, ...]:
        return pairs(self.graph)

    def one_pair(self) -> Pair:
        if len(self.pairs) != 1:
            msg = f"needs one loss that compares predictions with data; {len(self.pairs)} were found in the step"
            raise NotMade(msg)
        return self.pairs[0]

    @cached_property
    def inputs(self) -> tuple[Leaf, ...]:
        """What the model was given and the loss is made of, without masks, single numbers and targets."""
        return tuple(leaf for leaf in self.tape.of(Role.INPUT) if leaf.value.ndim and not is_mask(leaf.value))

    @cached_property
    def base(self) -> Made:
        """Predictions and targets of the step as it was."""
        return self.play(keep=self.compared)

    @cached_property
    def compared(self) -> frozenset[int]:
        return frozenset(n for pair in self.pairs for n in (pair.prediction, pair.target))

    def first_call(
        self,
        leaves: Mapping[int, torch.Tensor],
        wanted: Callable[[tuple[int, ...]], bool],
        differs: Callable[[torch.Tensor, float], bool],
    ) -> plain.Op | None:
        """The first call whose result, of a wanted shape, differs with these leaves: `differs` is given the gap, and
        how large rounding may make it. None where there is none, or there is too much to compare."""
        values = self.graph.values
        looked = {
            n: op
            for op in reversed(self.graph.ops)  # a dropout of nothing hands on what it is given
            for n in op.outputs
            if values[n].floating and wanted(values[n].shape)
        }
        if sum(prod(values[n].shape) * 8 for n in looked) > MOST_BYTES:
            return None
        before, after = self.play(keep=looked), self.play(leaves, looked)
        first = (n for n in reversed(looked) if differs(difference(before[n], after[n]), unchanged(before[n])))
        return next((looked[n] for n in first), None)

    def place_of(self, leaf: Leaf) -> Place:
        """Where a leaf is first used."""
        return next((op.place for op in self.tape.ops if leaf.index in op.inputs), Place())

    def other(self, value: torch.Tensor, axis: int, indices: Sequence[int]) -> torch.Tensor:
        """With other values at these indices of an axis: noise on top of real numbers, for whole numbers those of
        other places."""
        changed, index = value.detach().clone(), torch.tensor(list(indices), device=value.device)
        part = changed.index_select(axis, index)
        if value.is_floating_point() or value.is_complex():
            noise = torch.randn(part.shape, dtype=torch.float32, generator=self.generator).to(part)
            scale = value.detach().abs().float().std() if value.numel() > 1 else value.new_ones(())
            part = part + noise * scale.clamp_min(1e-3).to(part.real.dtype if part.is_complex() else part.dtype)
        else:
            flat = value.detach().reshape(-1)
            picks = torch.randint(0, len(flat), (part.numel(),), generator=self.generator).to(flat.device)
            part = flat[picks].reshape(part.shape)
        return changed.index_copy(axis, index, part)


def _holding(env: dict[int, Any], held: Mapping[int, torch.Tensor]) -> Callable[[int, Op], None]:
    def then(_: int, op: Op) -> None:
        for n in op.outputs:
            if n in held and n in env:
                env[n] = held[n]

    return then


def _stilled(op: Op) -> Op:
    context = Context(grad=False, autocast=op.context.autocast, cache=op.context.cache, scope=op.context.scope)
    if op.name == "torch.nn.functional.batch_norm":
        named = dict(zip(("input", "running_mean", "running_var", "weight", "bias", "training"), op.args, strict=False))
        named |= op.kwargs
        if named.get("training") and named.get("running_mean") is not None:
            rest = {k: v for k, v in zip(("momentum", "eps"), op.args[6:], strict=False)}
            return replace(op, args=(), kwargs={**named, **rest, "training": False}, context=context)
    return replace(op, context=context)


def is_mask(value: torch.Tensor) -> bool:
    if value.is_floating_point() or value.is_complex():
        return False
    return value.dtype == torch.bool or bool(((value == 0) | (value == 1)).all())


def difference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """|a − b|; infinite where only one of them is a number."""
    gap = (a.double() - b.double()).abs() if not a.is_complex() else (a - b).abs().double()
    return torch.where((a == b) | (a.isnan() & b.isnan()), torch.zeros_like(gap), gap.nan_to_num(nan=float("inf")))


def unchanged(value: torch.Tensor) -> float:
    """The largest difference that is nothing but rounding."""
    if not value.dtype.is_floating_point:
        return 0.0
    return ROUNDING * torch.finfo(value.dtype).eps * float(value.abs().double().amax().nan_to_num())
