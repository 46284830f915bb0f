"""independent-loss: is a loss that is written by hand what it looks like, or that with a slip?"""

from collections.abc import Callable, Iterator
from math import prod

import torch

from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade
from whyloss.tape.tape import Role

NAME = "independent-loss"
AGREES = 1e-4  # relative: of single precision, and of a small number within a logarithm
MOST_ELEMENTS = 2**16
SMALL = 1e-12
Form = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def _log(p: torch.Tensor) -> torch.Tensor:
    return p.clamp_min(SMALL).log()


RIGHT: dict[str, Form] = {
    "squared error": lambda p, y: (p - y).square(),
    "absolute error": lambda p, y: (p - y).abs(),
    "binary cross-entropy": lambda p, y: -(y * _log(p) + (1 - y) * _log(1 - p)),
    "cross-entropy": lambda p, y: -y * _log(p),
}
SLIPS: dict[str, Form] = {
    "the mean of y log p − (1 − y) log(1 − p), negated in its first term only": (
        lambda p, y: -y * _log(p) + (1 - y) * _log(1 - p)
    ),
    "the binary cross-entropy with log p in both terms": lambda p, y: -(y * _log(p) + (1 - y) * _log(p)),
    "the difference without a square": lambda p, y: p - y,
    "the square of a sum where a difference is meant": lambda p, y: (p + y).square(),
}
OF_SHARES = frozenset(n for n in (*RIGHT, *SLIPS) if "cross-entropy" in n or "log" in n)
SQUARED_MEAN = "the square of the mean difference"


def probe(bench: Bench) -> Iterator[Probe]:
    """`slip`: the loss equals, to 1e-4, a known wrong form, and not the right one. `agrees`: a right one."""
    if bench.graph.loss_ops or len(bench.tape.losses) != 1:
        msg = "the loss is a function of torch" if bench.graph.loss_ops else "there are several losses"
        raise NotMade(msg)
    loss, sides = _sides(bench)
    for predicted, target in sides:
        found = _named(RIGHT, predicted, target, loss)
        if found:
            yield bench.made(NAME, "agrees", {"loss": loss}, subject=found)
            return
    place = bench.graph.ends[0].place
    for predicted, target in sides:
        found = _named(SLIPS, predicted, target, loss) or _squared_mean(predicted, target, loss)
        if found:
            right = RIGHT["binary cross-entropy" if found in OF_SHARES else "squared error"](predicted, target).mean()
            yield bench.made(NAME, "slip", {"loss": loss, "right": float(right)}, subject=found, place=place)
            return
    msg = "the loss is written by hand, in a form that is not known"
    raise NotMade(msg)


def _sides(bench: Bench) -> tuple[float, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The loss, and what may be prediction and target in its formula: values of one shape."""
    values, leaves = bench.graph.values, bench.tape.leaves
    numbers = {n for op in bench.graph.tail for n in (*op.inputs, *op.outputs)}
    numbers = {n for n in numbers if 1 < prod(values[n].shape) <= MOST_ELEMENTS} | set(bench.tape.losses)
    played = {n: t for n, t in bench.play(keep=numbers).items() if not t.is_complex()}
    loss = played.pop(bench.tape.losses[0])
    if loss.numel() != 1:
        msg = "the loss is not one number"
        raise NotMade(msg)
    predicted = [t.double() for n, t in played.items() if values[n].requires_grad and n not in leaves]
    given = _made_of_targets(bench)
    targets = [t.double() for n, t in played.items() if n in given]
    targets = [t for t in targets if len(t) > 1 and bool((t != t[:1]).any())]
    return float(loss), [(p, y) for p in predicted for y in targets if p.shape == y.shape]


def _made_of_targets(bench: Bench) -> set[int]:
    found = {leaf.index for leaf in bench.tape.of(Role.TARGET)}
    for op in bench.graph.tail:
        if op.inputs and found.issuperset(op.inputs):
            found.update(op.outputs)
    return found


def _named(forms: dict[str, Form], p: torch.Tensor, y: torch.Tensor, loss: float) -> str:
    shares = bool(((p >= 0) & (p <= 1)).all()) and bool(((y == 0) | (y == 1)).all())
    for name, form in forms.items():
        if name in OF_SHARES and not shares:
            continue
        mean = float(form(p, y).mean())
        n, each = p.numel(), p.numel() / len(p)
        factors = (1, n, each, len(p), 0.5, n / 2, each / 2)
        if any(_same(factor * mean, loss) for factor in factors):
            return name
    return ""


def _squared_mean(p: torch.Tensor, y: torch.Tensor, loss: float) -> str:
    return SQUARED_MEAN if _same(float((p - y).mean().square()), loss) else ""


def _same(a: float, b: float) -> bool:
    return abs(a - b) <= AGREES * max(abs(a), abs(b), 1e-6)
