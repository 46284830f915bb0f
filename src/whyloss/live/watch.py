"""`with whyloss.watch(model, optimizer) as run:` for loops that are not started by `whyloss run`."""

import contextlib
import sys
from collections.abc import Iterable
from numbers import Real
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from whyloss.core.errors import Misuse, NothingToJudge
from whyloss.core.report import Report
from whyloss.journal import default_folder, read_run
from whyloss.live.announce import Announcer, announcement
from whyloss.live.finish import NO_STEP, conclude, empty
from whyloss.report import render_for

LOOKS = frozenset((2, 3, 5, 10, 20, 50))  # updates after which the rules look, and every doubling of the last


class Watch:
    """A training under observation. Leaving the `with` block ends it and prints the report to stderr.

    `report` is None until then, and stays None where no step was seen.
    """

    def __init__(
        self,
        models: tuple[Any, ...],
        optimizers: tuple[Any, ...],
        folder: Path,
        *,
        every: int,
        quiet: bool,
        tapes: dict[str, Any],
    ) -> None:
        self.report: Report | None = None
        self._quiet, self._announcer, self._closed = quiet, Announcer(), False
        attach, options = _observer()
        self._observation = attach(folder, every=every, models=models, optimizers=optimizers, tapes=options(**tapes))
        self._observation.on_update(self._look)

    @property
    def folder(self) -> Path:
        """Where the run is written; it exists from the first backward pass on."""
        folder: Path = self._observation.folder
        return folder

    def log(self, *, step: int | None = None, **metrics: float) -> None:
        """Adds figures that whyloss can't see: run.log(loss=…, val_loss=…). `step` defaults to the updates so far.

        Misuse for what is no number: pass loss.item(), not the tensor with its graph.
        """
        if step is not None and (not isinstance(step, int) or step < 0):
            msg = f"run.log(step={step!r}): a whole number from 0 on was expected"
            raise Misuse(msg)
        values = {name: _figure(name, value) for name, value in metrics.items()}
        self._observation.log(values, step)

    def record_next(self) -> None:
        """Records the next step that begins as a tape: its graph is in the journal, the tape is kept in memory."""
        self._observation.record_next()

    def close(self, how: str = "finished", error: str = "") -> Report | None:
        """Ends the observation and diagnoses it. The second call returns the same report.

        Raises nothing: the training's own result or exception must not be lost for the sake of a report.
        """
        if self._closed:
            return self.report
        self._closed = True
        self._observation.close(how, error)
        try:
            self.report = self._conclude()
        except NothingToJudge as nothing:
            self._say(f"whyloss: {nothing}")
        except Exception as fault:  # noqa: BLE001 - see above
            self._say(f"whyloss: could not make the report: {type(fault).__name__}: {fault}")
        return self.report

    def _conclude(self) -> Report:
        if not any(self.folder.glob("events-r*.jsonl")):
            msg = "no backward pass was seen inside the `with` block: nothing to judge"
            raise NothingToJudge(msg)
        conclusion = conclude(self.folder)
        if empty(conclusion.report):
            raise NothingToJudge(NO_STEP)
        self._say(render_for(conclusion.report, sys.stderr))
        for note in conclusion.notes:
            self._say(f"whyloss: {note}")
        return conclusion.report

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif isinstance(error, KeyboardInterrupt):
            self.close("interrupted")
        else:
            self.close("exception", f"{type(error).__name__}: {error}")

    def _look(self, updates: int) -> None:
        if updates in LOOKS or (updates >= 100 and updates & (updates - 1) == 0):
            for finding in self._announcer.look(read_run(self.folder)):
                self._say(announcement(finding))

    def _say(self, text: str) -> None:
        if not self._quiet:
            with contextlib.suppress(OSError):
                print(text, file=sys.stderr)  # noqa: T201


def watch(
    model: Any,
    optimizer: Any = None,
    *,
    out: str | Path | None = None,
    every: int = 10,
    quiet: bool = False,
    bundle: int | Iterable[int] = (),
    redact: bool = False,
    tape_memory: int = 512,
) -> Watch:
    """Observes a training from here on. `model`, `optimizer`: one, or a list or tuple of several.

    `out`: folder of the run (default .whyloss/<time>-<script>), which must not exist yet. `every`: updates between two
    full observations, after the first 20. `quiet`: print nothing. `bundle`: updates that are kept on disk, for
    `whyloss replay`; `redact`: without inputs and targets. `tape_memory`: MiB for recorded steps, 0 for none.
    Raises Misuse for what is no module, no optimizer or a folder in use.
    """
    models, optimizers = _all(model), _all(optimizer)
    if not isinstance(every, int) or every < 1:
        msg = f"every={every!r}: a whole number of updates from 1 on was expected"
        raise Misuse(msg)
    folder = Path(out) if out is not None else default_folder(sys.argv[0] if sys.argv and sys.argv[0] else "python")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder} is {'in use' if folder.is_dir() else 'a file'}: whyloss never overwrites; give another out="
        raise Misuse(msg)
    steps = frozenset((bundle,) if isinstance(bundle, int) else bundle)
    tapes = {"most_bytes": tape_memory * 2**20, "bundles": steps, "redact": redact}
    return Watch(models, optimizers, folder.absolute(), every=every, quiet=quiet, tapes=tapes)


def _observer() -> tuple[Any, Any]:
    try:
        from whyloss.observe import TapeOptions, attach
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        msg = "torch is not installed in this environment: pip install 'whyloss[torch]'"
        raise Misuse(msg) from error
    return attach, TapeOptions


def _all(given: Any) -> tuple[Any, ...]:
    if given is None:
        return ()
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _figure(name: str, value: Any) -> float:
    if isinstance(value, Real):  # NumPy's scalars are; tensors, arrays and text are not
        return float(value)
    msg = f"run.log({name}=…) was given a {type(value).__name__}, a number was expected: pass {name}.item(), or a mean"
    raise Misuse(msg)
