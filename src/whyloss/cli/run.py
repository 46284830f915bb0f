"""whyloss run"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from whyloss.cli.output import check_output, emit, failed, report_options, stderr
from whyloss.core.errors import Misuse, NothingToJudge

if TYPE_CHECKING:
    from whyloss.live.finish import Conclusion
    from whyloss.live.supervise import Ended


class Aside(click.Command):
    """Takes its own options up to the script, `-m module` or `--`; everything after that belongs to the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        at = _end_of_options(args)
        ctx.meta["whyloss.aside"] = args[at : at + 1] == ["--"]
        if at < len(args) and args[at].startswith("-m"):
            at += 2 if args[at] == "-m" else 1
            args = [*args[:at], "--", *args[at:]] if at <= len(args) else args
        return super().parse_args(ctx, args)


def _end_of_options(args: Sequence[str]) -> int:
    """Where the command begins: at the script, -m or --. All our options but --help and --redact take a value."""
    at = 0
    while at < len(args) and args[at].startswith("-") and args[at] != "--" and not args[at].startswith("-m"):
        joined = "=" in args[at] or (args[at][1:2] != "-" and len(args[at]) > 2)
        at += 1 if joined or args[at] in ("-h", "--help", "--redact") else 2
    return at


@click.command(cls=Aside, context_settings={"help_option_names": ["-h", "--help"], "allow_interspersed_args": False})
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
@click.option(
    "--bundle",
    "bundles",
    type=click.IntRange(min=0),
    multiple=True,
    metavar="STEP",
    help="Keep this update as a bundle for `whyloss replay`; may be given several times. The first that turns "
    "non-finite is always kept.",
)
@click.option("--redact", is_flag=True, help="Leave inputs and targets out of bundles; they can't be replayed then.")
@click.option(
    "--tape-memory",
    type=click.IntRange(min=0),
    default=512,
    show_default=True,
    metavar="MIB",
    help="Memory for recorded steps; a step that needs more is not recorded. 0 records "
    "none, and locates no non-finite value.",
)
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@report_options
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def run(
    out: Path | None,
    every: int,
    stop_on: str,
    bundles: tuple[int, ...],
    redact: bool,
    tape_memory: int,
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

    Our options stand before the script; what follows it is the script's. stdout stays the script's own: the report
    goes to stderr, as JSON too where no -o FILE is given. report.json is in the run's folder either way. The exit
    code is the script's own, unless that is 0: then 1 by --fail-on, 3 where nothing was seen to judge.
    """
    check_output(output)
    line, name = _command(module, command, aside=click.get_current_context().meta["whyloss.aside"])
    from whyloss.live.supervise import Settings, supervise

    existed = out is not None and out.is_dir()
    folder = _folder(out, name)
    try:
        settings = Settings(every=every, bundles=bundles, redact=redact, tape_memory=tape_memory)
        ended = supervise(line, folder, settings, stop_on_error=stop_on == "error", say=stderr)
        done = _conclude(ended, form, output)
    finally:
        if not existed:
            _tidy(folder)
    sys.exit(_exit_code(ended, done, fail_on))


def _command(module: str | None, command: tuple[str, ...], *, aside: bool) -> tuple[list[str], str]:
    """The command line of the child, and a name for the run."""
    if module is not None:
        _need_torch()
        return [sys.executable, "-m", module, *command], module
    if not command:
        msg = "nothing to run: whyloss run train.py [arguments], whyloss run -m module, or whyloss run -- command"
        raise Misuse(msg)
    if aside:
        return list(command), _script_in(command)
    _check_script(Path(command[0]))
    _need_torch()
    return [sys.executable, *command], command[0]


def _script_in(command: tuple[str, ...]) -> str:
    return next((c for c in command if c.endswith(".py")), command[0])


def _check_script(script: Path) -> None:
    """Misuse for what Python could not run at all."""
    if not script.exists():
        raise Misuse(f"there is no {script}{_scripts_near(script)}")
    if script.is_dir():
        if not (script / "__main__.py").is_file():
            msg = f"{script} is a folder without __main__.py: give the script{_scripts_near(script / '_')}"
            raise Misuse(msg)
        return
    import zipfile

    if script.suffix != ".pyc" and not zipfile.is_zipfile(script):
        _check_syntax(script)


def _scripts_near(script: Path) -> str:
    near = sorted(p.name for p in script.parent.glob("*.py"))[:5] if script.parent.is_dir() else []
    return f"; scripts there: {', '.join(near)}" if near else ""


def _check_syntax(script: Path) -> None:
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script gives its own when it runs
            ast.parse(script.read_bytes(), filename=str(script))
    except (SyntaxError, ValueError) as error:
        where = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        what = error.msg if isinstance(error, SyntaxError) else error
        msg = f"{script} is not a Python script{where}: {what}. For another command: whyloss run -- command"
        raise Misuse(msg) from error
    except OSError as error:
        msg = f"can't read {script}: {error.strerror}"
        raise Misuse(msg) from error
    except (RecursionError, MemoryError):
        return  # Python itself will say


def _need_torch() -> None:
    import importlib.metadata
    import importlib.util

    from whyloss.core.versions import OLDEST_TORCH, version_of

    if importlib.util.find_spec("torch") is None:
        msg = (
            f"torch is not installed for {sys.executable}: run whyloss from the training's own environment, or there: "
            "pip install 'whyloss[torch]'"
        )
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
    from whyloss.journal.folder import default_folder, make

    if out is None:
        return make(default_folder(name))
    folder = out.absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is a file"
        msg = f"--out {out} {what}: whyloss never overwrites a run; give a new folder"
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


def _conclude(ended: "Ended", form: str, output: Path | None) -> "list[Conclusion]":
    """The reports, told: one for each process of the command that trained something."""
    from whyloss.live.finish import conclude, empty

    done = []
    for folder in ended.folders:
        try:
            conclusion = conclude(folder, end=ended.how, error=ended.error)
        except NothingToJudge as nothing:
            stderr(f"whyloss: {nothing}")
            continue
        except Exception as fault:  # noqa: BLE001 - the script's exit code must not be lost for the sake of a report
            stderr(f"whyloss: could not make the report of {folder}: {type(fault).__name__}: {fault}")
            continue
        if not empty(conclusion.report):
            done.append(conclusion)
    for number, conclusion in enumerate(done, 1):
        file = output.with_stem(f"{output.stem}-{number}") if output is not None and number > 1 else output
        emit(conclusion.report, form, file, sys.stderr)
        for note in conclusion.notes:
            stderr(f"whyloss: {note}")
    if not done:
        stderr(f"whyloss: {_nothing(ended)}")
    return done


def _nothing(ended: "Ended") -> str:
    """Why there is nothing to judge, from how far the child's processes came."""
    from whyloss.live.finish import NO_STEP

    reached = ended.reached
    if reached.startswith("refused"):
        return _refused(reached.partition(" ")[2])
    if reached == "nothing":
        return (
            "nothing was observed: the command started no Python that reads PYTHONPATH "
            "(python -I and -E ignore it); start it without these flags, or use whyloss.watch() in the script"
        )
    if reached == "python":
        return f"nothing was observed: the script ended (exit code {ended.code}) without importing torch"
    if ended.folders:
        return NO_STEP
    return (
        f"nothing to judge: the script imported torch and ended (exit code {ended.code}); "
        "no backward() and no step of a torch.optim optimizer was seen"
    )


def _refused(reason: str) -> str:
    """What kept the child from being observed, in its own words: "ModuleNotFoundError: …"."""
    kind, _, text = reason.partition(": ")
    if kind == "ModuleNotFoundError":
        text += ". The Python that ran the script needs whyloss too: install it there with pip"
    return f"nothing was observed: {text}"


def _tidy(folder: Path) -> None:
    """Leaves no empty folder behind."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        if folder.parent.name == ".whyloss" and not any(folder.parent.iterdir()):
            folder.parent.rmdir()


def _exit_code(ended: "Ended", done: "list[Conclusion]", fail_on: str) -> int:
    """The script's own; 1 or 3 only in place of 0."""
    if ended.code:
        return ended.code
    if not done:
        return 3
    return 1 if any(failed(conclusion.report, fail_on) for conclusion in done) else 0
