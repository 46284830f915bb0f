"""Whether a tape, replayed unchanged, gives what was recorded; and if not, why."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from whyloss.tape.compiled import distance
from whyloss.tape.fingerprint import fingerprint
from whyloss.tape.replay import Played, replay
from whyloss.tape.tape import Leaf, Tape

FLOOR = 1e-3  # of all gradients' norm: below it the gradient of one tensor may be nothing but rounding


def prove(
    tape: Tape,
    losses: Iterable[torch.Tensor],
    gradients: Mapping[int, int | None] | None,
    near: Mapping[int, torch.Tensor] | None = None,
) -> Tape:
    """The tape, marked faithful if a replay gives these losses and gradients (as fingerprints; None: no gradient)
    bit for bit, else with the reason why it isn't. Gradients of None: they are not to be had, losses alone count.
    `near`: the gradients themselves, with which a tape that has a tolerance is compared where the bits differ; one that
    has the same bits loses its tolerance."""
    losses = tuple(losses)
    tolerance = tape.tolerance
    try:
        played = replay(tape)
        found = _difference(tape, played, losses, gradients)
        if tolerance and not found:
            tolerance = 0.0
        elif tolerance and near is not None:
            found = _distance(tape, played, losses, near)
    except Exception as error:  # noqa: BLE001 - whatever an op raises is the reason
        found = f"the replay failed: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    if found and tape.doubts and found not in tape.doubts:
        found = f"{tape.doubts[0]} ({found})"
    return replace(tape, faithful=not found, reason=found, tolerance=tolerance)


def _difference(
    tape: Tape, played: Played, losses: tuple[torch.Tensor, ...], gradients: Mapping[int, int | None] | None
) -> str:
    """Where a replay departs from what was recorded; "" nowhere."""
    for n, (ours, theirs) in enumerate(zip(played.losses, losses, strict=True)):
        if fingerprint(ours) != fingerprint(theirs):
            return f"loss {n} is {_figure(ours)} in the replay, {_figure(theirs)} in the training"
    if gradients is None:
        return ""
    lost = _lost(tape, played, gradients)
    if lost:
        return lost
    wrong = [n for n, g in played.gradients.items() if n in gradients and _print(g) != gradients[n]]
    if not wrong:
        return ""
    again = replay(tape)
    if any(_print(again.gradients[n]) != _print(played.gradients[n]) for n in wrong):
        return "its ops are not deterministic: two replays differ"
    missing = any((played.gradients[n] is None) != (gradients[n] is None) for n in wrong)
    return f"the gradient of {_names(tape, wrong)} {'arrives in one of them only' if missing else 'differs'}"


def _lost(tape: Tape, played: Played, gradients: Mapping[int, int | None]) -> str:
    """Gradients that the replay finds where the training's went elsewhere: beyond the tape, or to a later value."""
    for n, gradient in played.gradients.items():
        leaf = tape.leaves[n]
        if gradient is not None and leaf.carried:
            return carried(leaf)
        if gradient is not None and leaf.name and n not in gradients:
            return f"{leaf.name} was changed between two of its uses by something that was not recorded"
    return ""


def carried(leaf: Leaf) -> str:
    """What is said of a leaf that has a graph which the tape does not hold."""
    return f"{leaf.name or 'a tensor'} has a graph that was not recorded: from before the step, or from unseen code"


def _distance(tape: Tape, played: Played, losses: tuple[torch.Tensor, ...], near: Mapping[int, torch.Tensor]) -> str:
    """The same for what compiled code gave, within the tape's tolerance."""
    for n, (ours, theirs) in enumerate(zip(played.losses, losses, strict=True)):
        if distance(ours, theirs) > tape.tolerance:
            return f"loss {n} is {_figure(ours)} in the replay, {_figure(theirs)} in the training, which runs compiled"
    lost = _lost(tape, played, dict.fromkeys(near))
    if lost:
        return lost
    arrived = {n: g for n, g in played.gradients.items() if g is not None}
    if arrived.keys() != near.keys() & tape.leaves.keys():
        return "gradients arrive elsewhere in compiled code"
    floor = FLOOR * math.hypot(*(g.norm().item() for g in arrived.values()))
    wrong = [n for n, g in arrived.items() if distance(g, near[n], floor) > tape.tolerance]
    return f"the gradient of {_names(tape, wrong)} differs from that of compiled code" if wrong else ""


def _names(tape: Tape, numbers: list[int]) -> str:
    first = tape.leaves[numbers[0]].name or "an unnamed tensor"
    return f"{first} and {len(numbers) - 1} more" if len(numbers) > 1 else first


def _print(gradient: torch.Tensor | None) -> int | None:
    return None if gradient is None else fingerprint(gradient)


def _figure(t: torch.Tensor) -> str:
    return f"{t.item():.9g}" if t.numel() == 1 else f"a tensor of shape {tuple(t.shape)}"
