"""Says what is certain as soon as it is, while the training still runs."""

from whyloss.core.finding import Boundary, Finding, Severity
from whyloss.core.run import Run
from whyloss.diagnosis.diagnose import run_rules
from whyloss.diagnosis.fold import fold
from whyloss.report import clean, short_path


class Announcer:
    """Remembers what it has said; each certain error is said once."""

    def __init__(self) -> None:
        self.said: dict[str, Finding] = {}

    def look(self, run: Run) -> list[Finding]:
        """The errors of this run that are certain, stand at a root and were not said before.

        A symptom waits for its cause, which may need more updates; not the loss itself, once it is no number.
        """
        roots, _ = fold([o for o in run_rules(run) if isinstance(o, Finding)])
        certain = [f for f in roots if f.certain and f.severity is Severity.ERROR]
        new = [f for f in certain if f.name not in self.said and not (f.symptom and f.boundary is not Boundary.CURVE)]
        self.said |= {f.name: f for f in new}
        return new


def announcement(finding: Finding) -> str:
    """One line: severity, name, what, where."""
    place = finding.place
    where = f" ({short_path(place.file)}:{place.line})" if place.file else ""
    return clean(f"whyloss: {finding.severity} {finding.name}: {finding.message}{where}").replace("\n", " ")
