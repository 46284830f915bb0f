"""Does whyloss name the cause? Every program of corpus/, run under `whyloss run`, held against corpus/truth.jsonl.

    .venv/bin/python benchmarks/detection.py [--split tune|test] [--only NAME] [--peers] [--shared FOLDER]

Programs run in parallel, one thread each. Printed as tables and written to benchmarks/results/detection.json. With
--peers the same programs run under the tools of benchmarks/peers.py as well (their own environment is made first).
"""

import argparse
import json
import linecache
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

ROOT = Path(__file__).parent.parent
PROGRAMS = ROOT / "corpus" / "programs"
TRUTH = ROOT / "corpus" / "truth.jsonl"
RESULTS = Path(__file__).parent / "results" / "detection.json"
PATIENCE = 180  # seconds for a program: fifteen alone, more beside others
BARS = {"first": 0.80, "first three": 0.95, "place": 0.80}
PUBLISHED = (  # design.md §8: of published faulty programs, ported by us where marked
    ("DEFault, root cause first", "33 of 52"),
    ("DeepFD, root cause", "27 of 52"),
    ("DeepDiagnosis, place", "34 of 53"),
    ("DeepLocalize, place", "21 of 40"),
)


@dataclass(frozen=True)
class Truth:
    """A program and what is true of it. `places`: module:…, parameter:… or line:<part of the line>; any is right."""

    program: str
    split: str
    causes: tuple[str, ...]
    why: str
    extras: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    twin: str = ""
    source: str = ""
    marks: tuple[str, ...] = ()
    looks_like: str = ""

    @property
    def healthy(self) -> bool:
        return not self.causes


@dataclass(frozen=True)
class Row:
    """What whyloss said of a program. `rank`: of the first right cause, from 1; 0 where none is named."""

    program: str
    split: str
    causes: tuple[str, ...]
    said: tuple[str, ...]  # all roots, first first
    alarms: tuple[str, ...]  # of severity warning or error
    wrong: tuple[str, ...]  # alarms that the truth does not know
    rank: int
    place_right: bool | None  # None: the fault has no place
    place: str
    boundary: str
    step: int | None  # at which the right cause was first seen
    seconds: float
    error: str = ""
    marks: tuple[str, ...] = field(default=())


def read_truth() -> tuple[Truth, ...]:
    lines = (json.loads(line) for line in TRUTH.read_text().splitlines() if line.strip())
    return tuple(Truth(**{k: tuple(v) if isinstance(v, list) else v for k, v in line.items()}) for line in lines)


def run(truth: Truth) -> Row:
    """Runs one program; a program that fails is a row with its error."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="whyloss-corpus-") as folder:
        report, error = _report(truth, Path(folder))
    return score(truth, report, time.perf_counter() - began, error)


def _report(truth: Truth, folder: Path) -> tuple[dict[str, Any], str]:
    command = [sys.executable, "-m", "whyloss", "run", "--out", str(folder / "run"), str(PROGRAMS / truth.program)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return {}, f"took more than {PATIENCE} s"
    written = folder / "run" / "report.json"
    if not written.is_file():
        return {}, (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    detached = [line for line in done.stderr.splitlines() if "stopped observing" in line]
    return json.loads(written.read_text()), detached[0] if detached else ""


def score(truth: Truth, report: dict[str, Any], seconds: float, error: str = "") -> Row:
    causes = report.get("causes", [])
    right = next((i for i, cause in enumerate(causes) if cause["name"] in truth.causes), None)
    found = causes[right] if right is not None else None
    alarms = [c["name"] for c in causes if c["severity"] != "info"]
    return Row(
        program=truth.program,
        split=truth.split,
        causes=truth.causes,
        said=tuple(c["name"] for c in causes),
        alarms=tuple(alarms),
        wrong=tuple(a for a in dict.fromkeys(alarms) if a not in (*truth.causes, *truth.extras)),
        rank=0 if right is None else right + 1,
        place_right=_place_right(truth, found) if truth.places else None,
        place=_spoken(found["place"]) if found else "",
        boundary=found["boundary"] if found else _boundary(truth),
        step=found["first_step"] if found else None,
        seconds=round(seconds, 2),
        error=error,
        marks=truth.marks,
    )


def _place_right(truth: Truth, found: dict[str, Any] | None) -> bool:
    if found is None:
        return False
    place = found["place"]
    return any(_matches(kind, what, place) for kind, _, what in (p.partition(":") for p in truth.places))


def _matches(kind: str, what: str, place: dict[str, Any]) -> bool:
    if kind == "line":
        return what in _source(place)
    given = place.get(kind) or ""
    if kind == "module":
        given = given or (place.get("parameter") or "").rpartition(".")[0]
    return given == what or (bool(what) and f".{what.rstrip('.')}." in f".{given}.")


def _source(place: dict[str, Any]) -> str:
    """The line's text; looked up where only its number is given."""
    return place.get("source") or linecache.getline(place.get("file") or "", place.get("line") or 0).strip()


def _spoken(place: dict[str, Any]) -> str:
    parts = (place.get("parameter") or place.get("module") or "", _source(place))
    return " | ".join(p for p in parts if p)


def _boundary(truth: Truth) -> str:
    from whyloss.rules import all_rules

    return next((str(r.boundary) for r in all_rules() if r.name in truth.causes), "not built")


def run_all(truths: Sequence[Truth], workers: int, console: Console) -> list[Row]:
    with Progress(console=console, transient=True) as bar, ThreadPoolExecutor(workers) as pool:
        task = bar.add_task("whyloss run", total=len(truths))
        rows = []
        for done in as_completed([pool.submit(run, truth) for truth in truths]):
            rows.append(done.result())
            bar.advance(task)
            if not console.is_terminal:
                console.print(_line(rows[-1]), markup=False, soft_wrap=True)
    return sorted(rows, key=lambda r: (r.split, not r.causes, r.causes, r.program))


def summary(rows: Iterable[Row]) -> dict[str, Any]:
    """Shares over the faulty programs, and the alarms on the healthy ones."""
    rows = list(rows)
    faulty, healthy = [r for r in rows if r.causes], [r for r in rows if not r.causes]
    placed = [r for r in faulty if r.place_right is not None]
    early = [r for r in faulty if r.rank and r.step is not None]
    return {
        "faulty": len(faulty),
        "first": _share(faulty, lambda r: r.rank == 1),
        "first three": _share(faulty, lambda r: 1 <= r.rank <= 3),
        "place": _share(placed, lambda r: bool(r.place_right)),
        "named by step 2": _share(early, lambda r: (r.step or 0) <= 2),
        "wrong alarms beside": sum(len(r.wrong) for r in faulty),
        "healthy": len(healthy),
        "alarms on healthy": sum(bool(r.alarms) for r in healthy),
        "seconds": round(sum(r.seconds for r in rows), 1),
    }


def _share(rows: Sequence[Row], right: Callable[[Row], bool]) -> float | None:
    return round(sum(map(right, rows)) / len(rows), 4) if rows else None


def print_tables(rows: list[Row], console: Console) -> None:
    splits = [("tune", [r for r in rows if r.split == "tune"]), ("test", [r for r in rows if r.split == "test"])]
    marked = [r for r in rows if set(r.marks) & {"DeepFD", "DeepLocalize"}]
    groups = [*splits, ("ports of DeepFD/DeepLocalize", marked)]
    groups += [(f"boundary {b}", [r for r in rows if r.causes and r.boundary == b]) for b in _boundaries(rows)]
    table = Table("", "faulty", "first", "first three", "place", "by step 2", "wrong beside", "healthy", "alarms")
    for name, group in groups:
        if group:
            s = summary(group)
            table.add_row(
                name,
                str(s["faulty"]),
                *(_percent(s[k]) for k in ("first", "first three", "place", "named by step 2")),
                *(str(s[k]) for k in ("wrong alarms beside", "healthy", "alarms on healthy")),
            )
    table.add_row("bar", "", *(_percent(v) for v in BARS.values()), "", "", "", "0")
    console.print(table)
    for who, figure in PUBLISHED:
        console.print(f"  published: {who}: {figure}")
    _print_misses(rows, console)


def _line(row: Row) -> str:
    """One program in a line, for logs."""
    good = row.rank == 1 if row.causes else not row.alarms
    said = ", ".join(row.said[:4] if row.causes else row.alarms) or "nothing"
    place = "" if row.place_right is not False else f"; place: {row.place}"
    wanted = "/".join(row.causes) or "healthy"
    return (
        f"{'ok ' if good else 'BAD'} {row.split} {row.program} [{wanted}] {said}{place} {row.seconds:.0f}s {row.error}"
    )


def _boundaries(rows: list[Row]) -> list[str]:
    return list(dict.fromkeys(r.boundary for r in rows if r.causes))


def _print_misses(rows: list[Row], console: Console) -> None:
    console.print("\nalarms on healthy programs:", style="bold")
    for row in rows:
        if not row.causes and (row.alarms or row.error):
            console.print(f"  {row.split} {row.program}: {', '.join(row.alarms)} {row.error}", markup=False)
    console.print("\nfaulty programs whose cause is not first, or whose place is wrong:", style="bold")
    for row in rows:
        if row.causes and (row.rank != 1 or row.place_right is False or row.error):
            said = ", ".join(row.said[:4]) or "nothing"
            console.print(
                f"  {row.split} {row.program}: expected {'/'.join(row.causes)}; said {said}; at {row.place or '—'} "
                f"{row.error}",
                markup=False,
            )


def _percent(share: float | None) -> str:
    return "—" if share is None else f"{share:.0%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("tune", "test"))
    parser.add_argument("--only", help="programs whose name or cause holds this", default="")
    parser.add_argument("--peers", action="store_true", help="run the other tools, too")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    given = parser.parse_args()
    console = Console()
    truths = [
        t
        for t in read_truth()
        if given.split in (None, t.split) and any(given.only in name for name in (t.program, *t.causes))
    ]
    if not truths:
        parser.error(f"no program of {TRUTH} fits")
    rows = run_all(truths, given.workers, console)
    print_tables(rows, console)
    found: dict[str, Any] = {
        "machine": platform.machine(),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "summary": {s: summary(r for r in rows if r.split == s) for s in ("tune", "test")},
        "bars": BARS,
        "rows": [asdict(r) for r in rows],
    }
    if given.peers:
        import peers

        found["peers"] = peers.compare(truths, given.workers, console)
    given.results.parent.mkdir(exist_ok=True)
    given.results.write_text(json.dumps(found, indent=1))
    console.print(f"\nwrote {given.results}")


if __name__ == "__main__":
    main()
