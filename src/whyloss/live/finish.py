"""The end of a run: diagnose what was journalled and leave the report beside it."""

import os
from dataclasses import replace
from pathlib import Path

from whyloss.core.report import Report
from whyloss.core.run import Run
from whyloss.diagnose import diagnose
from whyloss.journal import read_run
from whyloss.report import write_json

REPORT = "report.json"


def conclude(folder: Path, *, end: str | None = None, error: str | None = None) -> Report:
    """Reads the journal, diagnoses it and writes report.json into its folder. `end` and `error` replace what the
    journal knows of how the run ended. A report that can't be written is still returned."""
    run = ended(read_run(folder), end, error)
    shown = os.path.relpath(folder)
    report = diagnose(run, folder=str(folder) if shown.startswith("..") else shown)
    try:
        (folder / REPORT).write_text(write_json(report), encoding="utf-8")
    except OSError:
        report = replace(report, folder=f"nothing: {folder} can't be written to")
    return report


def ended(run: Run, end: str | None, error: str | None) -> Run:
    """The run with what its parent process knows of its end, where the run itself could not say."""
    known = run.facts.end != "running"
    if end is None or (known and end != "stopped"):
        return run
    return replace(run, facts=replace(run.facts, end=end, error=error or run.facts.error))
