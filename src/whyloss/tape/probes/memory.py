"""overfit-batch: can the batch of a recorded step be learned by heart?"""

import inspect
from collections.abc import Iterator
from dataclasses import replace

import torch

from whyloss.core.baseline import label_entropy
from whyloss.core.levels import BINARY, CROSS_ENTROPY
from whyloss.core.probe import Probe
from whyloss.tape.edit import Refused
from whyloss.tape.probes.bench import Bench, NotMade, Pair
from whyloss.tape.tape import Role, Setup, Tape
from whyloss.tape.train import keys_of, train

NAME = "overfit-batch"
STEPS = 200
HALF = 0.5  # of what a constant prediction reaches on the batch
NEAR = 0.8  # of it: from there on the model is taken to know nothing yet
LAST = 5  # losses over which the result is read


def probe(bench: Bench) -> Iterator[Probe]:
    """`memorised`: trained on this one batch alone, with the program's own optimizer or with Adam, the loss falls below
    half of what a constant prediction reaches on it. `not-memorised`: it didn't in the time that there was."""
    pair = bench.one_pair()
    level = floor(pair, bench.base[pair.target])
    if not level:
        msg = f"no constant prediction is known whose loss {pair.op.kind} could be held against"
        raise NotMade(msg)
    seconds = bench.left / 2
    numbers: dict[str, float] = {"level": level}
    for optimizer, tape in (("own", bench.tape), ("adam", _with_adam(bench.tape))):
        losses = _trained(tape, seconds)
        first, last = losses[0], sum(losses[-LAST:]) / len(losses[-LAST:])
        numbers |= {"first": first, "last": last, "steps": len(losses), "own": optimizer == "own"}
        if first < NEAR * level or first > level / NEAR**2:
            msg = f"the loss of the step is {first:.4g}, and not that of a constant prediction, {level:.4g}"
            raise NotMade(msg)
        if last < HALF * level:
            yield bench.made(NAME, "memorised", numbers, place=pair.op.place)
            return
    yield bench.made(NAME, "not-memorised", numbers, place=pair.op.place)


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


def _trained(tape: Tape, seconds: float) -> tuple[float, ...]:
    try:
        losses = train(tape, STEPS, state="fresh", seconds=seconds).losses
    except Refused as error:
        raise NotMade(str(error)) from error
    if not losses:
        msg = "one step takes longer than there is time for"
        raise NotMade(msg)
    return losses


def _with_adam(tape: Tape) -> Tape:
    """With Adam as it is by default, over all that wants a gradient."""
    settings = {n: p.default for n, p in inspect.signature(torch.optim.Adam).parameters.items() if n != "params"}
    wanted = [n for n in keys_of(tape) if tape.leaves[n].requires_grad and tape.leaves[n].role is Role.PARAMETER]
    return replace(tape, setup=Setup(kind=torch.optim.Adam, groups=({**settings, "params": wanted},)))
