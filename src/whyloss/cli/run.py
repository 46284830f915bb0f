"""whyloss run"""

import ast
import importlib.metadata
import importlib.util
import os
import sys
import zipfile
from pathlib import Path

import click

from whyloss.cli.output import emit, failed, report_options, stderr
from whyloss.core.errors import Misuse
from whyloss.core.report import Report
from whyloss.live.supervise import Ended, supervise

ASIDE = {"help_option_names": ["-h", "--help"], "ignore_unknown_options": False, "allow_interspersed_args": False}


@click.command(context_settings=ASIDE)
@click.option("--out", type=click.Path(path_type=Path), help="Folder of the run [default: .whyloss/<time>-<script>].")
@click.option(
    "--every",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    help="Updates between two full observations, after the first 20.",
)
@click.option(
    "--stop-on",
    type=click.Choice(["never", "error"]),
    default="never",
    show_default=True,
    help="End the training when a cause that makes it pointless is certain.",
)
@click.option("-m", "module", help="Run a module, as python -m does.")
@report_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    out: Path | None,
    every: int,
    stop_on: str,
    module: str | None,
    form: str,
    output: Path | None,
    fail_on: str,
    command: tuple[str, ...],
) -> None:
    """Run a training script, unchanged, and say why it does not learn.

    \b
    whyloss run train.py --epochs 3
    whyloss run -m package.train --epochs 3
    whyloss run -- torchrun --nproc-per-node 1 train.py
    """
    line, name = _command(module, command)
    folder = _folder(out, name)
    ended = supervise(line, folder, every=every, stop_on_error=stop_on == "error", say=stderr)
    reports = _conclude(ended, form, output)
    _tidy(folder)
    sys.exit(_exit_code(ended, reports, fail_on))


def _command(module: str | None, command: tuple[str, ...]) -> tuple[list[str], str]:
    """The command line of the child, and a name for the run."""
    if module is not None:
        _need_torch()
        return [sys.executable, "-m", module, *command], module
    if not command:
        msg = "nothing to run: whyloss run train.py [arguments], whyloss run -m module, or whyloss run -- command"
        raise Misuse(msg)
    if "--" in sys.argv and sys.argv[sys.argv.index("--") + 1 :] == list(command):
        return list(command), _script_in(command)
    _check_script(Path(command[0]))
    _need_torch()
    return [sys.executable, *command], command[0]


def _script_in(command: tuple[str, ...]) -> str:
    return next((c for c in command if c.endswith(".py")), command[0])


def _check_script(script: Path) -> None:
    """Misuse for what Python could not run at all."""
    if not script.exists():
        near = sorted(p.name for p in (script.parent if script.parent.is_dir() else Path()).glob("*.py"))[:5]
        msg = f"there is no {script}" + (f"; scripts there: {', '.join(near)}" if near else "")
        raise Misuse(msg)
    if script.is_dir() or zipfile.is_zipfile(script):
        return
    try:
        ast.parse(script.read_bytes(), filename=str(script))
    except (SyntaxError, ValueError) as error:
        line = f", line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else f": {error}"
        msg = f"{script} is not a Python script{line}. For another command: whyloss run -- command"
        raise Misuse(msg) from error
    except OSError as error:
        msg = f"can't read {script}: {error.strerror}"
        raise Misuse(msg) from error


def _need_torch() -> None:
    from whyloss.core.versions import OLDEST_TORCH, version_of

    if importlib.util.find_spec("torch") is None:
        msg = f"torch is not installed for {sys.executable}: pip install 'whyloss[torch]', or run whyloss from the training's own environment"
        raise Misuse(msg)
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return
    if version_of(found) < OLDEST_TORCH:
        msg = f"torch {found} is installed; whyloss needs torch 2.6 or newer: pip install 'torch>=2.6'"
        raise Misuse(msg)


def _folder(out: Path | None, name: str) -> Path:
    """A folder that can be written to and holds nothing; Misuse else."""
    from whyloss.journal import default_folder

    folder = (out or default_folder(name)).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        msg = f"{folder} is not an empty folder: whyloss never overwrites a run; give another one with --out"
        raise Misuse(msg)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        msg = f"can't make {folder}: {error.strerror}. Choose another place with --out DIR"
        raise Misuse(msg) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        msg = f"can't write in {folder}. Choose another place with --out DIR"
        raise Misuse(msg)
    return folder


def _conclude(ended: Ended, form: str, output: Path | None) -> list[Report]:
    from whyloss.live.finish import conclude

    reports = [conclude(folder, end=ended.how) for folder in ended.folders]
    reports = [r for r in reports if r.verdict != "nothing-seen"]
    for report in reports:
        emit(report, form, output, sys.stderr)
    if not reports:
        stderr(f"whyloss: {_nothing(ended)}")
    return reports


def _nothing(ended: Ended) -> str:
    """Why there is nothing to judge, from how far the child's processes came."""
    reached = ended.reached
    if reached.startswith("refused"):
        return f"nothing was observed: {reached.partition(': ')[2]}"
    if reached == "nothing":
        return (
            "nothing was observed: the command started no Python that reads PYTHONPATH "
            "(python -I and -E ignore it); start it without these flags, or use whyloss.watch() in the script"
        )
    if reached == "python":
        return f"nothing was observed: the script ended (exit code {ended.code}) without importing torch"
    if ended.folders:
        return (
            "backward passes were seen, but no step of a torch.optim optimizer: updates made by hand or by an optimizer "
            "that is no subclass of torch.optim.Optimizer can't be judged yet"
        )
    return (
        f"nothing to judge: the script imported torch and ended (exit code {ended.code}) before its first backward pass"
    )


def _tidy(folder: Path) -> None:
    """Leaves no empty folder behind."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        if folder.parent.name == ".whyloss" and not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _exit_code(ended: Ended, reports: list[Report], fail_on: str) -> int:
    """The script's own; 1 or 3 only in place of 0."""
    if ended.code:
        return ended.code
    if not reports:
        return 3
    return 1 if any(failed(report, fail_on) for report in reports) else 0
