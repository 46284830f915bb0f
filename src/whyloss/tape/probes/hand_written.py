"""independent-loss: is a loss that is written by hand what it looks like, or that with a slip?"""

from collections.abc import Callable, Iterator
from math import prod

import torch
import torch.nn.functional as F

from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade
from whyloss.tape.tape import Role

NAME = "independent-loss"
AGREES = 1e-4  # relative: of single precision, and of a small number within a logarithm
MOST_ELEMENTS = 2**16
SMALL = 1e-12
Form = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Sides = list[tuple[torch.Tensor, torch.Tensor]]


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
OF_CLASSES: dict[str, Form] = {"cross-entropy of classes": lambda p, y: F.cross_entropy(p, y)}
SLIPS_OF_CLASSES: dict[str, Form] = {
    "the cross-entropy with its log-sum-exp over the examples, not the classes": (
        lambda p, y: p.logsumexp(0).mean() - _of_class(p, y).mean()
    ),
    "the cross-entropy with its softmax over the examples, not the classes": (
        lambda p, y: -_of_class(p.log_softmax(0), y).mean()
    ),
    "minus the probability of the right class, without its logarithm": (
        lambda p, y: -_of_class(p.softmax(1), y).mean()
    ),
}
OF_SHARES = frozenset(n for n in (*RIGHT, *SLIPS) if "cross-entropy" in n or "log" in n)
SQUARED_MEAN = "the square of the mean difference"


def probe(bench: Bench) -> Iterator[Probe]:
    """`slip`: the loss equals, to 1e-4, a known wrong form, and not the right one. `agrees`: a right one; `negated`:
    minus that."""
    if bench.graph.loss_ops or len(bench.tape.losses) != 1:
        msg = "the loss is a function of torch" if bench.graph.loss_ops else "there are several losses"
        raise NotMade(msg)
    loss, sides, of_classes = _sides(bench)
    place = bench.graph.ends[0].place
    for outcome, value in (("agrees", loss), ("negated", -loss)):
        names = (_named(forms, p, y, value) for forms, of in ((RIGHT, sides), (OF_CLASSES, of_classes)) for p, y in of)
        if found := next(filter(None, names), ""):
            yield bench.made(NAME, outcome, {"loss": loss}, subject=found, place=place)
            return
    for predicted, target in of_classes:
        if found := _named(SLIPS_OF_CLASSES, predicted, target, loss):
            right = F.cross_entropy(predicted, target)
            yield bench.made(NAME, "slip", {"loss": loss, "right": float(right)}, subject=found, place=place)
            return
    for predicted, target in sides:
        found = _named(SLIPS, predicted, target, loss) or _squared_mean(predicted, target, loss)
        if found:
            right = RIGHT["binary cross-entropy" if found in OF_SHARES else "squared error"](predicted, target).mean()
            yield bench.made(NAME, "slip", {"loss": loss, "right": float(right)}, subject=found, place=place)
            return
    msg = "the loss is written by hand, in a form that is not known"
    raise NotMade(msg)


def _sides(bench: Bench) -> tuple[float, Sides, Sides]:
    """The loss, and what may be prediction and target in its formula: values of one shape; scores and class numbers."""
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
    targets = [t for n, t in played.items() if n in given and len(t) > 1 and bool((t != t[:1]).any())]
    sides = [(p, y.double()) for p in predicted for y in targets if p.shape == y.shape]
    return float(loss), sides, [(p, y.reshape(-1)) for p in predicted for y in targets if _scores(p, y)]


def _scores(p: torch.Tensor, y: torch.Tensor) -> bool:
    """Whether each of the whole numbers may name a column."""
    whole = y.dtype in (torch.int64, torch.int32) and p.ndim == 2 and p.shape[1] > 1 and y.numel() == len(p)
    return whole and bool(((y >= 0) & (y < p.shape[1])).all())


def _of_class(p: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return p.gather(1, y.long()[:, None])[:, 0]


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
