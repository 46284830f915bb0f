"""derivative: is the hand-written backward of an autograd.Function the derivative of its forward?"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from whyloss.core.probe import Probe
from whyloss.tape.probes.bench import Bench, NotMade
from whyloss.tape.replay import quiet, restore
from whyloss.tape.tape import Op, Ref, mapped

NAME = "derivative"
MOST_FUNCTIONS = 4
PLACES = 12  # elements of each input that are moved
STEP = 1e-5  # relative to the element, at least to 1
AGREES = 1e-3  # relative; central differences in float64 are good to 1e-8 where the function is smooth
MOST_ELEMENTS = 2**22


@dataclass
class Checked:
    """Of the elements that were moved: how many derivatives agree, are flat though backward gives something, differ."""

    agree: int = 0
    flat: int = 0
    differ: int = 0
    rough: int = 0  # the difference quotients of two steps disagree: a kink, or a jump
    worst: float = 0.0
    ours: float = float("nan")  # of the worst one: the difference quotient
    theirs: float = float("nan")  # and what backward gives


def probe(bench: Bench) -> Iterator[Probe]:
    """`agrees`; `flat`: where they differ, the forward is constant; `identity`: the forward gives back what it is
    given; `differs`; `feedback`: it has an input that its forward does not use."""
    functions: dict[str, Op] = {}
    for op in bench.tape.ops:
        owner = getattr(op.call, "__self__", None)
        if isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
            known = functions.get(op.name)
            if known is None or _trained(bench, op) > _trained(bench, known):
                functions[op.name] = op
    if not functions:
        msg = "the step calls no autograd.Function of the program's own"
        raise NotMade(msg)
    wanted = {n for op in functions.values() for n in op.inputs}
    given = bench.play(keep=wanted)
    for op in list(functions.values())[:MOST_FUNCTIONS]:
        yield _of_function(bench, op, {n: given[n] for n in op.inputs})


def _trained(bench: Bench, op: Op) -> int:
    """How many of its inputs have a gradient: of several calls the one that says most is looked at."""
    return sum(bench.graph.values[n].requires_grad for n in op.inputs)


def _of_function(bench: Bench, op: Op, given: dict[int, torch.Tensor]) -> Probe:
    if sum(t.numel() for t in given.values()) > MOST_ELEMENTS:
        msg = f"{op.name} is given more than {MOST_ELEMENTS} numbers"
        raise NotMade(msg)
    with quiet(bench.tape):
        function = _Function(bench, op, given)
        checked = function.check()
        outcome = function.outcome(checked)
    numbers = {k: getattr(checked, k) for k in ("agree", "flat", "differ", "rough", "worst", "ours", "theirs")}
    return bench.made(NAME, outcome, numbers, subject=op.name.rpartition(".")[2], place=op.place)


class _Function:
    """One call, in float64, on what it was given in the step."""

    def __init__(self, bench: Bench, op: Op, given: dict[int, torch.Tensor]) -> None:
        self.bench, self.op = bench, op
        self.given = {n: (t.double() if t.is_floating_point() else t).contiguous() for n, t in given.items()}
        self.wanted = [n for n in self.given if bench.graph.values[n].requires_grad and self._real(n)]
        if not self.wanted:
            msg = f"no input of {op.name} has a gradient"
            raise NotMade(msg)
        first = self.call(self.given)
        if any(t.dtype != torch.float64 for t in first if t.is_floating_point()):
            msg = f"{op.name} does not compute in float64"
            raise NotMade(msg)
        self.first = [t for t in first if t.is_floating_point()]
        if not self.first or not all(torch.equal(a, b) for a, b in zip(self.first, self._again(), strict=True)):
            msg = f"{op.name} gives other numbers each time, or no real ones"
            raise NotMade(msg)
        self.weights = [torch.randn(t.shape, dtype=t.dtype, generator=bench.generator).to(t.device) for t in self.first]

    def _real(self, n: int) -> bool:
        return self.given[n].is_floating_point() and self.given[n].numel() > 0

    def _again(self) -> list[torch.Tensor]:
        return [t for t in self.call(self.given) if t.is_floating_point()]

    def call(self, given: dict[int, torch.Tensor]) -> list[torch.Tensor]:
        args = mapped(self.op.args, lambda ref: given[ref.index], Ref)
        kwargs: dict[str, Any] = mapped(dict(self.op.kwargs), lambda ref: given[ref.index], Ref)
        if self.op.drawn:
            kwargs = restore(self.op.drawn, kwargs)
        call: Callable[..., Any] = self.op.call
        out = call(*args, **kwargs)
        return [t for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, torch.Tensor)]

    def total(self, given: dict[int, torch.Tensor]) -> torch.Tensor:
        out = [t for t in self.call(given) if t.is_floating_point()]
        return torch.stack([(t * w).sum() for t, w in zip(out, self.weights, strict=True)]).sum()

    def check(self) -> Checked:
        with torch.enable_grad():
            leaves = {n: t.clone().requires_grad_(n in self.wanted) for n, t in self.given.items()}
            # an autograd.Function may not change a leaf in place: it is given a copy
            total = self.total({n: t * 1 if n in self.wanted else t for n, t in leaves.items()})
            found = torch.autograd.grad(total, [leaves[n] for n in self.wanted], allow_unused=True)
        checked = Checked()
        with torch.no_grad():
            for n, gradient in zip(self.wanted, found, strict=True):
                if gradient is not None:  # None is said on purpose
                    self._compare(n, gradient, checked)
        return checked

    def _compare(self, n: int, gradient: torch.Tensor, checked: Checked) -> None:
        size = self.given[n].numel()
        picks = torch.randperm(size, generator=self.bench.generator)[:PLACES].tolist()
        scale = float(gradient.abs().mean())
        for i in picks:
            theirs, step = float(gradient.reshape(-1)[i]), STEP * max(1.0, abs(float(self.given[n].reshape(-1)[i])))
            ours, finer = self._quotient(n, i, step), self._quotient(n, i, step / 4)
            _judge(checked, ours, finer, theirs, scale)

    def _quotient(self, n: int, i: int, step: float) -> float:
        sums = []
        for sign in (1, -1):
            moved = self.given[n].clone()
            moved.view(-1)[i] += sign * step
            sums.append(self.call({**self.given, n: moved}))
        # difference first, sum after: large sums would swallow the small difference
        gaps = zip(*([t for t in s if t.is_floating_point()] for s in sums), strict=True)
        return float(sum(((a - b) * w).sum() for (a, b), w in zip(gaps, self.weights, strict=True))) / (2 * step)

    def outcome(self, checked: Checked) -> str:
        if not checked.agree + checked.flat + checked.differ:
            msg = f"{self.op.name} jumps or bends wherever it was looked at"
            raise NotMade(msg)
        if not checked.flat + checked.differ:
            return "agrees"
        if self._identity():
            return "identity"
        if checked.flat:
            return "flat"
        return "feedback" if self._unused() else "differs"

    def _identity(self) -> bool:
        return any(
            t.numel() == self.first[0].numel() and torch.equal(t.reshape(-1), self.first[0].reshape(-1))
            for n, t in self.given.items()
            if self._real(n)
        )

    def _unused(self) -> bool:
        """Whether there is an input of real numbers that the forward does not depend on."""
        for n, t in self.given.items():
            if self._real(n) and t.ndim and n not in self.wanted:
                moved = self.call({**self.given, n: t + 1.0})
                if all(torch.equal(a, b) for a, b in zip(self.first, moved, strict=False)):
                    return True
        return False


def _judge(checked: Checked, ours: float, finer: float, theirs: float, scale: float) -> None:
    size = max(abs(ours), abs(theirs), 1e-3 * scale, 1e-12)
    if not abs(ours - finer) <= AGREES * size:
        checked.rough += 1
    elif abs(ours - theirs) <= 10 * AGREES * size:
        checked.agree += 1
    elif ours == 0:
        checked.flat += 1
    else:
        checked.differ += 1
        gap = abs(ours - theirs) / size
        if gap > checked.worst:
            checked.worst, checked.ours, checked.theirs = gap, ours, theirs
