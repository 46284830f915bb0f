"""Of everything that was logged, what the losses are made from."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from whyloss.tape.tape import BACKWARD, READS, Leaf, Op, Role, refs

MOST_ASIDE = 2_000
LOSSES = frozenset(
    f"torch.nn.functional.{name}"
    for name in (
        "binary_cross_entropy",
        "binary_cross_entropy_with_logits",
        "cross_entropy",
        "ctc_loss",
        "gaussian_nll_loss",
        "huber_loss",
        "kl_div",
        "l1_loss",
        "mse_loss",
        "multi_margin_loss",
        "multilabel_margin_loss",
        "multilabel_soft_margin_loss",
        "nll_loss",
        "poisson_nll_loss",
        "smooth_l1_loss",
        "soft_margin_loss",
    )
)
RESHAPING = frozenset(
    f"torch.{owner}{name}"
    for owner in ("", "Tensor.")
    for name in (
        "clone",
        "contiguous",
        "double",
        "expand",
        "flatten",
        "float",
        "long",
        "permute",
        "reshape",
        "squeeze",
        "t",
        "to",
        "transpose",
        "type",
        "unsqueeze",
        "view",
        "__getitem__",
    )
) | {"torch.nn.functional.pad", "torch.nn.functional.one_hot"}


@dataclass(frozen=True)
class Pruned:
    """The part of a log that belongs to some backward calls."""

    ops: tuple[Op, ...]
    aside: tuple[Op, ...]
    losses: tuple[int, ...]
    leaves: Mapping[int, Leaf]
    roles: Mapping[int, Role]
    numbers: frozenset[int]


def prune(ops: Sequence[Op], backwards: Sequence[int], leaves: Mapping[int, Leaf], family: Mapping[int, int]) -> Pruned:
    """The ancestors of what these backward calls start from, in order; and aside, of what was read out of torch."""
    losses = tuple(r.index for i in backwards for r in refs(ops[i].args[0]))
    last = max(backwards, default=-1)
    kept = _ancestors(ops, set(backwards), last, family)
    reads = [i for i in range(last) if ops[i].name in READS]
    aside = sorted(_ancestors(ops, set(reads[-MOST_ASIDE:]), last, family) - kept)
    chosen = tuple(ops[i] for i in sorted(kept))
    beside = tuple(ops[i] for i in aside)
    numbers = frozenset(n for op in (*chosen, *beside) for n in (*op.inputs, *op.outputs))
    there = {n: leaf for n, leaf in leaves.items() if n in numbers}
    return Pruned(chosen, beside, losses, there, _roles(chosen, there), numbers)


def _ancestors(ops: Sequence[Op], wanted: set[int], last: int, family: Mapping[int, int]) -> set[int]:
    """Places of the wanted ops and of all that what they are given depends on, changes in place included."""
    kept: set[int] = set()
    needed: set[int] = set()
    families: set[int] = set()
    for i in range(last, -1, -1):
        op = ops[i]
        made = i in wanted or (op.name != BACKWARD and any(n in needed for n in op.outputs))
        if made or (op.name != BACKWARD and any(family[n] in families for n in op.changed)):
            kept.add(i)
            needed.update(op.inputs)
            families.update(family[n] for n in op.inputs)
    return kept


def _roles(ops: Sequence[Op], leaves: Mapping[int, Leaf]) -> dict[int, Role]:
    """As recorded, but data that goes into the target of a loss and nowhere else is a target."""
    roles = {n: leaf.role for n, leaf in leaves.items()}
    to_target = set(_targets(ops))
    users: dict[int, list[Op]] = {}
    for op in ops:
        for n in op.inputs:
            users.setdefault(n, []).append(op)
    for op in reversed(ops):  # what is only reshaped on its way to a target is one, too
        if op.name in RESHAPING and op.outputs and all(n in to_target for n in op.outputs):
            to_target.update(op.inputs[:1])
    for n in to_target & leaves.keys():
        data = roles[n] in (Role.INPUT, Role.CONSTANT)
        if data and all(op.name in LOSSES or all(o in to_target for o in op.outputs) for op in users.get(n, [])):
            roles[n] = Role.TARGET
    return roles


def _targets(ops: Iterable[Op]) -> Iterator[int]:
    for op in ops:
        if op.name in LOSSES:
            given = op.kwargs.get("target", op.args[1] if len(op.args) > 1 else None)
            yield from (r.index for r in refs(given))
