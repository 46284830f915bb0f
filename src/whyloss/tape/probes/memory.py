"""overfit-batch: can the batch of a recorded step be learned by heart?"""

from collections.abc import Iterator

import torch

from whyloss.core.baseline import label_entropy
from whyloss.core.compared import Pair
from whyloss.core.levels import BINARY, CROSS_ENTROPY
from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade
from whyloss.tape.tape import Tape
from whyloss.tape.train import train
from whyloss.tape.vary import permuted_targets

NAME = "overfit-batch"
STEPS = 200
HALF = 0.5  # of what a constant prediction reaches on the batch
NEAR = 0.8  # of it: from there on the model is taken to know nothing yet
LAST = 5  # losses over which the result is read


def probe(bench: Bench) -> Iterator[Probe]:
    """`memorised`: trained on this one batch alone, with the program's own optimizer, the loss falls below half of what
    a constant prediction reaches on it. Then the same with the targets in another order: what they share with the
    inputs makes them quicker to learn. `not-memorised`: it didn't in the time that there was."""
    pair = bench.one_pair()
    level = floor(pair, bench.base[pair.target])
    if not level:
        msg = f"no constant prediction is known whose loss {pair.op.kind} could be held against"
        raise NotMade(msg)
    seconds = bench.left / 2
    losses = _trained(bench.tape, STEPS, seconds)
    first, last = losses[0], sum(losses[-LAST:]) / len(losses[-LAST:])
    if first < NEAR * level or first > level / NEAR**2:
        msg = f"the loss of the step is {first:.4g}, and not that of a constant prediction, {level:.4g}"
        raise NotMade(msg)
    numbers = {"level": level, "first": first, "last": last, "steps": len(losses)}
    reached = _reached(losses, HALF * level)
    if reached is None:
        yield bench.made(NAME, "not-memorised", numbers, place=pair.op.place)
        return
    order = torch.randperm(len(bench.tape.leaves[pair.leaf.value].value), generator=bench.generator).tolist()
    permuted = _trained(permuted_targets(bench.tape, order), STEPS, seconds)
    numbers |= {"reached": reached, "reached_permuted": _reached(permuted, HALF * level) or len(permuted) + 1}
    yield bench.made(NAME, "memorised", numbers, place=pair.op.place)


def _reached(losses: tuple[float, ...], limit: float) -> int | None:
    """The step at which the mean of the last few losses was below the limit first."""
    for i in range(LAST, len(losses) + 1):
        if sum(losses[i - LAST : i]) / LAST < limit:
            return i
    return None


def floor(pair: Pair, target: torch.Tensor) -> float:
    """The least loss of a constant prediction on these targets; 0 where it is not known."""
    if pair.op.reduction not in (None, "mean"):
        return 0.0
    if pair.op.kind in CROSS_ENTROPY and not target.is_floating_point():
        there = target[target != pair.op.arguments.get("ignore_index", -100)]
        return label_entropy(torch.unique(there, return_counts=True)[1].tolist()) if there.numel() else 0.0
    if pair.op.kind in BINARY:
        share = target.double().reshape(len(target), -1).mean(0)
        return sum(label_entropy([p, 1 - p]) for p in share.tolist()) / max(share.numel(), 1)
    if pair.op.kind == "mse_loss":
        return float(target.double().reshape(len(target), -1).var(0, correction=0).mean())
    return 0.0


def _trained(tape: Tape, steps: int, seconds: float) -> tuple[float, ...]:
    losses = train(tape, steps, state="fresh", seconds=seconds).losses
    if len(losses) < LAST:
        msg = "a few steps take longer than there is time for"
        raise NotMade(msg)
    return losses
