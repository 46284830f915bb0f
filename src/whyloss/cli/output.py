"""Options and output that verbs share."""

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from whyloss.core.errors import Misuse
from whyloss.core.finding import Severity
from whyloss.core.report import Report
from whyloss.report import render_text, write_json

WORST = {"never": (), "error": (Severity.ERROR,), "warning": (Severity.ERROR, Severity.WARNING)}


def report_options(command: Callable[..., Any]) -> Callable[..., Any]:
    options = (
        click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True),
        click.option(
            "-o", "output", type=click.Path(dir_okay=False, path_type=Path), help="Write the report to a file instead."
        ),
        click.option(
            "--fail-on",
            type=click.Choice(list(WORST)),
            default="never",
            show_default=True,
            help="Exit with 1 for a cause of this severity or worse.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


def emit(report: Report, form: str, output: Path | None, stream: Any) -> None:
    """The report to a file, or to a stream in the stream's width and colours."""
    if output is not None:
        text = write_json(report) if form == "json" else render_text(report)
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            msg = f"can't write {output}: {error.strerror}"
            raise Misuse(msg) from error
        return
    terminal = stream.isatty()
    if form == "json":
        stream.write(write_json(report))
    else:
        columns = int(os.environ.get("COLUMNS") or 0) or (shutil.get_terminal_size().columns if terminal else 100)
        stream.write(
            render_text(report, width=max(40, min(columns, 120)), color=terminal and "NO_COLOR" not in os.environ)
        )
    stream.flush()


def failed(report: Report, fail_on: str) -> bool:
    return any(cause.severity in WORST[fail_on] for cause in report.causes)


def stderr(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()
