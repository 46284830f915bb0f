"""Options and output that verbs share. Nothing here, nor in a verb's file, loads NumPy before it is used."""

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from whyloss.core.errors import Misuse

if TYPE_CHECKING:
    from whyloss.core.report import Report

WORST = {"never": (), "error": ("error",), "warning": ("error", "warning")}


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option(
            "-o", "output", metavar="FILE", type=click.Path(path_type=Path), help="Write the report to FILE instead."
        ),
        click.option(
            "--fail-on",
            type=click.Choice(list(WORST)),
            default="never",
            show_default=True,
            help="Exit with 1, in place of 0, for a cause of this severity or worse.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def check_output(output: Path | None) -> None:
    """Misuse for a file that can't be written, said before a training of hours and not after it."""
    if output is None:
        return
    folder = output.absolute().parent
    if not folder.is_dir():
        msg = f"can't write {output}: there is no folder {folder}"
    elif output.is_dir() or not os.access(output if output.exists() else folder, os.W_OK):
        msg = f"can't write {output}: {'it is a folder' if output.is_dir() else 'no permission'}"
    else:
        return
    raise Misuse(msg)


def emit(report: "Report", form: str, output: Path | None, stream: TextIO) -> None:
    """The report to a file, or to a stream in the stream's width and colours."""
    from whyloss.report import render_for, render_text, short_path, write_json

    if output is None:
        stream.write(write_json(report) if form == "json" else render_for(report, stream))
        stream.flush()
        return
    try:
        output.write_text(write_json(report) if form == "json" else render_text(report), encoding="utf-8")
    except OSError as error:
        msg = f"can't write {output}: {error.strerror}"
        raise Misuse(msg) from error
    stderr(f"whyloss: wrote {short_path(str(output))}")


def failed(report: "Report", fail_on: str) -> bool:
    return any(cause.severity in WORST[fail_on] for cause in report.causes)


def stderr(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it any more: no reason to leave the training alone
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
