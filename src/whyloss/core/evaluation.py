"""Which series of a run are losses, and which of these were measured on examples held out from training."""

import re
from functools import cache

from whyloss.core.feed import eval_loss_name
from whyloss.core.run import Run
from whyloss.core.series import Series

LOSSES = {"loss", "losses", "nll", "ce", "bce", "mse", "mae", "rmse", "perplexity", "ppl", "bpc", "elbo", "entropy"}
NOT_LOSSES = {"scale", "weight", "coef", "coefficient", "ratio", "policy", "policies", "count", "time"}
HELD_OUT = {"val", "valid", "validation", "eval", "evaluation", "test", "testing", "dev", "heldout", "holdout", "held"}
RIGHT = {"acc", "accuracy", "top1", "f1", "auc", "map", "iou", "dice", "bleu", "r2", "correct"}
_RUN_TOGETHER = re.compile(r"^(val|valid|validation|eval|test)(loss|acc|accuracy)$|^(train)(loss)$")


@cache
def words(name: str) -> frozenset[str]:
    """`val`, `loss` of val_loss, valLoss, Val/Loss and `Valid Loss`."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+[0-9]?", name)
    found: set[str] = set()
    for part in (p.lower() for p in parts):
        match = _RUN_TOGETHER.match(part)
        found |= {g for g in match.groups() if g} if match else {part}
    return frozenset(found)


def is_loss(name: str) -> bool:
    """By its name: a loss scale or a policy's entropy is none."""
    return bool(words(name) & LOSSES) and not words(name) & NOT_LOSSES


def is_held_out(name: str) -> bool:
    return bool(words(name) & HELD_OUT) and "train" not in words(name)


def evaluation_losses(run: Run) -> dict[str, Series]:
    """The losses on held-out data: those that the script logged under a name that says so, and those that were seen
    while it evaluated examples that it did not train on."""
    seen = {eval_loss_name(e.index): e for e in run.evaluations}
    named = {n: s for n, s in run.metrics.items() if n not in seen and is_loss(n) and is_held_out(n)}
    return named | {n: run.metrics[n] for n, e in seen.items() if e.held_out and n in run.metrics}


def evaluation_scores(run: Run) -> dict[str, Series]:
    """Shares of right answers on held-out data that the script logged."""
    return {n: s for n, s in run.metrics.items() if words(n) & RIGHT and is_held_out(n) and not is_loss(n)}
