"""The end of a run: diagnose what was journalled and leave the report beside it."""

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

from whyloss.core.report import Report
from whyloss.core.run import Run
from whyloss.diagnosis import diagnose
from whyloss.journal import add_end, read_run
from whyloss.journal.folder import replace_file
from whyloss.report import short_path, write_json

REPORT = "report.json"
NO_STEP = (
    "backward passes were seen, but no step of a torch.optim optimizer: updates made by hand, or by an optimizer that "
    "is no subclass of torch.optim.Optimizer, can't be judged yet"
)


def empty(report: Report) -> bool:
    """Whether there is nothing to judge: no update was seen, and no rule found fault with that."""
    return report.training.steps == 0 and not report.alarms


@dataclass(frozen=True)
class Conclusion:
    """A report and what became of its file. `written` is None where the disk would not take it: `trouble` says why."""

    report: Report
    written: Path | None
    trouble: str
    detached: str  # why the observation ended before the training did

    @property
    def notes(self) -> list[str]:
        """What has to be said beside the report."""
        notes = []
        if self.detached:
            steps = self.report.training.steps
            notes.append(f"only the first {steps} updates were observed: {self.detached}")
        if self.written is not None:
            notes.append(f"wrote {short_path(str(self.written))}")
        else:
            notes.append(f"could not write {REPORT}: {self.trouble}")
        return notes


def conclude(folder: Path, *, end: str | None = None, error: str = "") -> Conclusion:
    """Reads the journal, diagnoses it and writes report.json into its folder. `end` and `error` are what the parent
    process knows of how the run ended: the journal gets them where it could not know.

    NothingToJudge where there is nothing to read.
    """
    run = read_run(folder)
    if end is not None and (not run.over or end == "stopped"):
        run = _ended(run, folder, end, error)
    report = diagnose(run, folder=short_path(str(folder)))
    trouble = _write(folder / REPORT, write_json(report))
    return Conclusion(report, None if trouble else folder / REPORT, trouble, run.facts.detached)


def _ended(run: Run, folder: Path, end: str, error: str) -> Run:
    with contextlib.suppress(OSError):  # a full disk: the report still says it
        add_end(folder, end, error)
    return replace(run, facts=replace(run.facts, end=end, error=error))


def _write(path: Path, text: str) -> str:
    """Replaces the file as a whole; why not, where that fails."""
    try:
        replace_file(path, text.encode())
    except OSError as error:
        return error.strerror or str(error)
    return ""
