"""The report as text, for a terminal of any width or a log file."""

import os
import re
from collections.abc import Iterable
from io import StringIO
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from whyloss.core.finding import Evidence, Place, Severity
from whyloss.core.report import Cause, Cost, Report, Training

STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "bold yellow", Severity.INFO: "bold cyan"}
ENDS = {
    "running": "still running, or ended with no trace",
    "exception": "ended by an error",
    "stopped": "stopped by whyloss",
}
VERDICTS = {"causes": "bold red", "unclear": "bold yellow", "healthy": "bold green", "nothing-seen": "bold yellow"}


CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """The text without what moves a cursor or colours a terminal: names and error messages are the script's own."""
    return CONTROL.sub("", text)


def render_for(report: Report, stream: TextIO) -> str:
    """The whole report in the width and the colours of a stream: plain and 100 columns wide where it is no terminal."""
    terminal = stream.isatty()
    columns = os.environ.get("COLUMNS", "")
    width = int(columns) if columns.isdecimal() and int(columns) else _columns(stream) if terminal else 100
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    color = not plain and (terminal or bool(os.environ.get("FORCE_COLOR")))
    return render_text(report, width=max(40, min(width, 120)), color=color)


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 100
    except OSError:
        return 100


def render_text(report: Report, *, width: int | None = None, color: bool = False) -> str:
    """The whole report; `width` defaults to 100 columns. No control codes unless `color`."""
    out = StringIO()
    console = Console(
        file=out,
        width=width or 100,
        height=25,
        force_terminal=color,
        force_jupyter=False,
        color_system="standard" if color else None,
        highlight=False,
        _environ={},  # the caller has decided: neither COLUMNS nor TERM may change it
    )
    console.print(Group(*_parts(report)))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _parts(report: Report) -> Iterable[RenderableType]:
    yield Text.assemble(("whyloss ", "bold"), (report.verdict, VERDICTS[report.verdict]), f"  {clean(report.headline)}")
    yield Text()
    for number, cause in enumerate(report.causes, 1):
        yield _cause(number, cause, report)
        yield Text()
    yield _rows(_tail(report))


def _cause(number: int, cause: Cause, report: Report) -> RenderableType:
    head = Text.assemble(
        f"{number}. ",
        (f"{cause.severity} ", STYLES[cause.severity]),
        (clean(cause.name), "bold"),
        (f"  {cause.status}, {cause.boundary} boundary, since step {cause.first_step}", "dim"),
    )
    rows = [("", cause.message)]
    if str(cause.place):
        rows.append(("where", _place(cause.place)))
    rows += [("evidence" if i == 0 else "", _evidence(e)) for i, e in enumerate(cause.evidence)]
    below = [s for s in report.symptoms if s.explained_by == cause.name]
    rows += [("explains" if i == 0 else "", f"{s.name}: {s.message}") for i, s in enumerate(below)]
    if cause.change:
        rows.append(("change", cause.change))
    if cause.verify:
        rows.append(("verify", cause.verify))
    return Group(head, Padding(_rows(rows), (0, 0, 0, 3)))


def _tail(report: Report) -> Iterable[tuple[str, str]]:
    yield from _ruled_out(report)
    ruled_out = {out.name for out in report.ruled_out}
    passed = [p.rule for p in report.passed if p.rule not in ruled_out]
    if passed:
        yield ("passed", f"{len(passed)} {'other ' if ruled_out else ''}checks: {', '.join(passed)}")
    reasons = {s.reason: ", ".join(o.rule for o in report.skipped if o.reason == s.reason) for s in report.skipped}
    for i, (reason, rules) in enumerate(reasons.items()):
        yield ("not judged" if i == 0 else "", f"{rules}: {reason}")
    yield ("training", _training(report.training))
    for name, (first, last) in report.metrics.items():
        yield ("", f"{name} {_number(first)} → {_number(last)} ({_origin(name)})")
    yield ("cost", _cost(report.cost))
    if report.folder:
        yield ("run", report.folder)


def _ruled_out(report: Report) -> Iterable[tuple[str, str]]:
    """With their reasons where the verdict rests on them; by name alone under a cause that is confirmed by itself."""
    if report.ruled_out and report.causes[0].status == "confirmed":
        yield ("not it", ", ".join(out.name for out in report.ruled_out))
        return
    for i, out in enumerate(report.ruled_out):
        yield ("not it" if i == 0 else "", f"{out.name}: {out.reason}")


def _rows(rows: Iterable[tuple[str, str]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim", min_width=8)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(label, Text(clean(text)))
    return table


def _place(place: Place) -> str:
    name = place.parameter or place.module or place.op
    line = f"{short_path(place.file)}:{place.line}" if place.file else None
    source = f"`{place.source}`" if place.source else None
    return "  ".join(part for part in (name, line, source) if part)


def short_path(file: str) -> str:
    """Relative to the working directory where that is shorter."""
    try:
        relative = os.path.relpath(file)
    except ValueError:
        return file
    return relative if len(relative) < len(file) else file


def _evidence(e: Evidence) -> str:
    text = f"{e.what}: {_number(e.observed)}{f' {e.unit}' if e.unit else ''}"
    if e.limit is not None:
        text += f" (limit {_number(e.limit)})"
    if e.steps:
        steps = f"step {e.steps[0]}" if len(set(e.steps)) == 1 else f"steps {min(e.steps)}–{max(e.steps)}"
        text += f", {steps}"
    return text


def _number(value: float | str | None) -> str:
    if value is None:
        return "not finite"
    return value if isinstance(value, str) else f"{value:.4g}"


def _training(t: Training) -> str:
    parts = [f"{t.steps} steps of {' and '.join(t.optimizers) or 'no optimizer'}"]
    if t.rates:
        parts.append(f"rate {', '.join(f'{r:.3g}' for r in t.rates)} at the end")
    if t.model:
        parts.append(t.model)
    if t.dtype:
        parts.append(f"{t.dtype} on {t.device}")
    if t.seeds:
        parts.append(f"seed {', '.join(map(str, t.seeds))}")
    if t.losses != (None, None):
        parts.append(f"loss {_number(t.losses[0])} → {_number(t.losses[1])}")
    if t.end != "finished":
        parts.append(f"{ENDS.get(t.end, t.end)}{f': {t.error}' if t.error else ''}")
    return ", ".join(parts)


def _cost(c: Cost) -> str:
    share = (
        "" if c.share_of_later_steps is None else f", {100 * c.share_of_later_steps:.2g}% of the steps after the first"
    )
    return f"observing took {c.observer_seconds:.2f} s of {c.seconds:.2f} s: {c.first_step_seconds:.2f} s once{share}"


def _origin(metric: str) -> str:
    return "seen while the script evaluated" if metric.startswith("loss/eval[") else "from run.log"
