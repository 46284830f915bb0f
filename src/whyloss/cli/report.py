"""whyloss report"""

import sys
from pathlib import Path

import click

from whyloss.cli.output import check_output, emit, failed, report_options
from whyloss.core.errors import Misuse


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run_dir", type=click.Path(path_type=Path))
@report_options
def report(run_dir: Path, form: str, output: Path | None, fail_on: str) -> None:
    """Diagnose a recorded run again and print its report.

    RUN_DIR is the folder that `whyloss run` named at its end: .whyloss/<time>-<script>.
    """
    check_output(output)
    _check_folder(run_dir)
    from whyloss.diagnosis import diagnose
    from whyloss.journal import read_run
    from whyloss.live.finish import empty
    from whyloss.report import short_path

    made = diagnose(read_run(run_dir), folder=short_path(str(run_dir)))
    emit(made, form, output, sys.stdout)
    if empty(made):
        sys.exit(3)
    if failed(made, fail_on):
        sys.exit(1)


def _check_folder(folder: Path) -> None:
    """Misuse for what is no folder, and for a folder that holds runs rather than being one."""
    if not folder.is_dir():
        what = "is a file: give the folder it stands in" if folder.exists() else "does not exist"
        msg = f"{folder} {what}. `whyloss run` names the folder at its end; by default it is in .whyloss/"
        raise Misuse(msg)
    if any(folder.glob("events-r*.jsonl")):
        return
    for below in (folder, folder / ".whyloss"):
        runs = sorted({p.parent for p in below.glob("*/events-r*.jsonl")})
        if runs:
            msg = f"{folder} is not a run, but holds {len(runs)}. The newest: whyloss report {runs[-1]}"
            raise Misuse(msg)
