"""whyloss report"""

import sys
from pathlib import Path

import click

from whyloss.cli.output import emit, failed, report_options
from whyloss.core.errors import NothingToJudge


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("run_dir", type=click.Path(path_type=Path))
@report_options
def report(run_dir: Path, form: str, output: Path | None, fail_on: str) -> None:
    """Diagnose a recorded run again and print its report."""
    from whyloss.diagnose import diagnose
    from whyloss.journal import read_run

    if not run_dir.is_dir():
        msg = (
            f"{run_dir} is {'a file' if run_dir.exists() else 'not there'}: give the folder that `whyloss run` printed"
        )
        raise NothingToJudge(msg)
    made = diagnose(read_run(run_dir), folder=str(run_dir))
    emit(made, form, output, sys.stdout)
    if made.verdict == "nothing-seen":
        sys.exit(3)
    if failed(made, fail_on):
        sys.exit(1)
