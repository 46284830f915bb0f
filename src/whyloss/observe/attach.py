"""Starts and ends the observation of this process."""

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from whyloss.core.errors import Misuse
from whyloss.core.versions import OLDEST_TORCH, version_of
from whyloss.observe.observer import Observer
from whyloss.observe.patches import Patches
from whyloss.observe.tapes import MOST_BYTES, TapeOptions


class Observation:
    """A running observation. `close` ends it; closing twice does nothing."""

    def __init__(self, observer: Observer, patches: Patches) -> None:
        self._observer, self._patches = observer, patches

    @property
    def folder(self) -> Path:
        return self._observer.folder

    @property
    def active(self) -> bool:
        return self._observer.active

    def log(self, values: dict[str, float], step: int | None = None) -> None:
        self._observer.see(self._observer.metrics, values, step)

    def record_next(self) -> None:
        self._observer.see(self._observer.tapes.record_next)

    def on_update(self, call: Callable[[int], None]) -> None:
        """`call(updates done)` after each update, within the observer's guard."""
        self._observer.on_update = call

    def close(self, how: str = "finished", error: str = "") -> None:
        self._observer.see(self._observer.finish, how, error)
        self._patches.remove()


def attach(
    folder: Path,
    *,
    every: int = 10,
    rank: int = 0,
    models: tuple[Any, ...] = (),
    optimizers: tuple[Any, ...] = (),
    tapes: TapeOptions = TapeOptions(),
) -> Observation:
    """Observes every optimizer of this process from now on. Misuse for a torch that is too old or
    for what is no module or optimizer."""
    if version_of(str(torch.__version__)) < OLDEST_TORCH:
        msg = f"torch {torch.__version__} is installed; whyloss needs torch 2.6 or newer: pip install 'torch>=2.6'"
        raise Misuse(msg)
    for given, kind in ((models, torch.nn.Module), (optimizers, torch.optim.Optimizer)):
        for thing in given:
            if not isinstance(thing, kind):
                msg = f"a torch {kind.__name__} was expected, {type(thing).__name__} was given"
                raise Misuse(msg)
    observer = Observer(folder, every=every, rank=rank, models=models, tapes=tapes)
    patches = Patches(observer)
    patches.install()
    for optimizer in optimizers:
        observer.see(observer.optimizer_ready, optimizer)
    return Observation(observer, patches)


def attach_from_environment() -> None:
    """Called right after `import torch` in a process that `whyloss run` started."""
    folder = os.environ["WHYLOSS_FOLDER"]
    every = int(os.environ.get("WHYLOSS_EVERY", "10"))
    rank = int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0)
    observation = attach(Path(folder), every=every, rank=rank, tapes=_tape_options())
    atexit.register(_at_exit, observation)


def _tape_options() -> TapeOptions:
    """What `whyloss run` was told of tapes."""
    given = os.environ.get("WHYLOSS_BUNDLE", "")
    return TapeOptions(
        most_bytes=int(os.environ.get("WHYLOSS_TAPE_MEMORY", MOST_BYTES // 2**20)) * 2**20,
        bundles=frozenset(int(step) for step in given.split(",") if step),
        redact=bool(os.environ.get("WHYLOSS_REDACT")),
    )


def _at_exit(observation: Observation) -> None:
    error = getattr(sys, "last_value", None)
    if error is None:
        observation.close("finished")
    elif isinstance(error, KeyboardInterrupt):
        observation.close("interrupted")
    else:
        observation.close("exception", f"{type(error).__name__}: {error}")
