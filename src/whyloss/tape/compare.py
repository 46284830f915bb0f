"""Replays a bundle and says whether it gives what was recorded."""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from whyloss.core.errors import NothingToJudge
from whyloss.tape.environment import Environment, environment, settings
from whyloss.tape.fingerprint import fingerprint
from whyloss.tape.replay import Played, replay
from whyloss.tape.unpack import Bundle, read_bundle

# How far apart the same step may come out on another machine, relative to the largest element of a tensor, by the
# coarsest dtype of the step. Sums in another order differ by a few roundings; a deep net multiplies them.
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 3e-2, torch.bfloat16: 1e-1}
# Gradients that are rounding noise beside the others (of a bias before a batch norm) are held against those.
NOISE = 1e-3


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What a replay of a bundle gave. `tolerance` is 0 where every bit was compared, which is so where `elsewhere`,
    the differences that excuse other bits, is empty. `difference`: the first one found; "" where it is reproduced."""

    bundle: Bundle
    here: Environment
    elsewhere: tuple[str, ...]
    tolerance: float
    losses: tuple[torch.Tensor, ...]
    compared: int  # gradients
    agreeing: int
    difference: str

    @property
    def reproduced(self) -> bool:
        return not self.difference


def reproduce(folder: str | Path) -> Reproduction:
    """Reads, checks and replays a bundle, under the settings of torch that it was recorded with."""
    return compare(read_bundle(folder))


def compare(bundle: Bundle) -> Reproduction:
    """Bit for bit where torch, processor and devices are the same and the tape is faithful, else within a tolerance.

    NothingToJudge for a redacted bundle, and for one whose replay fails.
    """
    if bundle.redacted:
        msg = f"{bundle.folder} was written without the values of its data: it can be read, but not replayed"
        raise NothingToJudge(msg)
    here, played = _played(bundle)
    elsewhere = here.differences(bundle.recorded)
    if not bundle.tape.faithful:
        elsewhere = (*elsewhere, f"a tape that was not exact where it was recorded ({bundle.tape.reason})")
    tolerance = _tolerance(bundle) if elsewhere else 0.0
    apart = dict(_apart(bundle, played, tolerance))
    return Reproduction(
        bundle=bundle,
        here=here,
        elsewhere=elsewhere,
        tolerance=tolerance,
        losses=played.losses,
        compared=len(bundle.gradients),
        agreeing=sum(n not in apart for n in bundle.gradients),
        difference=_loss_difference(bundle, played, tolerance) or _said(bundle, apart),
    )


def _played(bundle: Bundle) -> tuple[Environment, Played]:
    try:
        with warnings.catch_warnings(), settings(bundle.recorded):
            warnings.simplefilter("ignore")  # of torch's; the training has had them
            return environment(v.device for v in bundle.tape.values.values()), replay(bundle.tape)
    except NothingToJudge as error:
        raise NothingToJudge(f"{bundle.folder} can't be replayed: {error}") from error
    except Exception as error:
        what = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise NothingToJudge(f"{bundle.folder} can't be replayed: {what}") from error


def _tolerance(bundle: Bundle) -> float:
    dtypes = {v.dtype for v in bundle.tape.values.values()}
    return max((TOLERANCE.get(d, 0.0) for d in dtypes), default=0.0)


def _loss_difference(bundle: Bundle, played: Played, tolerance: float) -> str:
    for n, (ours, theirs) in enumerate(zip(played.losses, bundle.losses, strict=True)):
        if found := _difference(ours, theirs, tolerance, 0.0):
            return f"loss {n}: {found}" if len(bundle.losses) > 1 else f"the loss: {found}"
    return ""


def _apart(bundle: Bundle, played: Played, tolerance: float) -> Iterator[tuple[int, str]]:
    floor = NOISE * max((_largest(g) for g in bundle.gradients.values() if g is not None), default=0.0)
    for n, theirs in bundle.gradients.items():
        ours = played.gradients.get(n)
        if ours is None or theirs is None:
            if (ours is None) != (theirs is None):
                yield n, f"arrives in the {'recording' if ours is None else 'replay'} only"
        elif found := _difference(ours, theirs, tolerance, floor):
            yield n, found


def _said(bundle: Bundle, apart: dict[int, str]) -> str:
    for n, found in apart.items():
        more = f"; so do {len(apart) - 1} other gradients" if len(apart) > 1 else ""
        return f"the gradient of {bundle.tape.leaves[n].name or 'an unnamed tensor'}: {found}{more}"
    return ""


def _difference(ours: torch.Tensor, theirs: torch.Tensor, tolerance: float, floor: float) -> str:
    """Of two tensors, the worst element; "" where they are the same."""
    ours = ours if ours.layout == torch.strided else ours.to_dense()
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return f"{tuple(theirs.shape)} {theirs.dtype} recorded, {tuple(ours.shape)} {ours.dtype} replayed"
    if tolerance == 0.0 and fingerprint(ours) == fingerprint(theirs):
        return ""
    a, b = _wide(ours), _wide(theirs)
    gap = torch.where((a == b) | (a.isnan() & b.isnan()), 0.0, (a - b).abs().nan_to_num(math.inf, math.inf)).flatten()
    if tolerance and (not gap.numel() or float(gap.max()) <= tolerance * max(_largest(theirs), floor)):
        return ""
    at = int(gap.argmax())
    element = [int(i) for i in torch.unravel_index(torch.tensor(at), a.shape)] if a.ndim else []
    where = f" at {element}" if element else ""
    return f"{b.flatten()[at]:.9g} recorded, {a.flatten()[at]:.9g} replayed{where}"


def _wide(t: torch.Tensor) -> torch.Tensor:
    t = torch.view_as_real(t.detach().resolve_conj()) if t.is_complex() else t.detach()
    return t.cpu().double()


def _largest(t: torch.Tensor) -> float:
    wide = _wide(t)
    finite = wide[wide.isfinite()].abs()
    return float(finite.max()) if finite.numel() else 0.0
