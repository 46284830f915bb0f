"""The tensors of a model and its optimizer, as the journal describes them."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch
from torch.nn.parameter import UninitializedTensorMixin  # type: ignore[attr-defined]

from whyloss.core.run import Tensor
from whyloss.observe.models import Owned

PLAIN = (torch.Tensor, torch.nn.Parameter)


def describe(owned: Owned, key: int, group: int | None) -> Tensor:
    p = owned.parameter
    uninitialised = isinstance(p, UninitializedTensorMixin)
    return Tensor(
        key=key,
        name=owned.name,
        module=owned.module,
        kind=owned.kind,
        shape=() if uninitialised else tuple(p.shape),
        dtype=str(p.dtype).removeprefix("torch."),
        trainable=p.requires_grad,
        in_optimizer=group is not None,
        group=group or 0,
        in_model=owned.in_model,
        aliases=owned.aliases,
        user_code=owned.user_code,
    )


def stray(parameter: torch.Tensor, name: str) -> Owned:
    """A tensor that no module in memory has. An nn.Parameter is somebody's weight; another leaf may be an input."""
    kind = "Parameter" if isinstance(parameter, torch.nn.Parameter) else ""
    return Owned(parameter, name, "", kind, in_model=False, user_code=True)


def keep_start(tensor: Tensor, before: Tensor | None) -> Tensor:
    """A tensor that was there in an earlier segment keeps what it started as."""
    if before is None:
        return tensor
    return replace(tensor, mean=before.mean, std=before.std, largest=before.largest)


def with_start(tensors: Sequence[tuple[Tensor, torch.Tensor]]) -> list[tuple[Tensor, torch.Tensor]]:
    """Mean, std and largest |value| of each, as it is now: one transfer."""
    out = list(tensors)
    new = [i for i, (_, p) in enumerate(out) if readable(p) and p.is_floating_point()]
    figures = []
    for i in new:
        value = dense(out[i][1].detach()).float()
        figures += [value.mean(), value.std(correction=0), value.abs().amax()]
    if not figures:
        return out
    read = torch.stack([f.to(figures[0].device) for f in figures]).tolist()
    for j, i in enumerate(new):
        mean, std, largest = read[3 * j : 3 * j + 3]
        out[i] = (replace(out[i][0], mean=mean, std=std, largest=largest), out[i][1])
    return out


def readable(t: torch.Tensor) -> bool:
    """Has plain or sparse values here: not lazy, empty, integer or sharded over processes."""
    if type(t) not in PLAIN and (isinstance(t, UninitializedTensorMixin) or hasattr(t, "_local_tensor")):
        return False
    return t.numel() > 0 and (t.is_floating_point() or t.is_complex()) and t.layout in (torch.strided, torch.sparse_coo)


def dense(t: torch.Tensor) -> torch.Tensor:
    """The values of a sparse tensor, repeated indices added up."""
    if t.layout == torch.sparse_coo:
        t = t.coalesce().values()
    return t


def gradients(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Those gradients that can be read; one without any value (a sparse one of no row) is none."""
    found = (dense(t.grad) for t in tensors if t.grad is not None and readable(t.grad))
    return [g for g in found if g.numel()]
