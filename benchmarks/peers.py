"""The programs of corpus/ under other tools, in an environment of their own (benchmarks/.peers, made at the first run).

    .venv/bin/python benchmarks/peers.py [--split tune|test] [--only NAME] [--every N] [--tool NAME]

Each tool is attached as its documentation says (peer_tools/sitecustomize.py); what its messages mean is a generous
table (peer_tools/messages.py). The versions stand in pyproject.toml, extra bench-peers.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent / "peer_tools"))

from messages import causes_of

ROOT = Path(__file__).parent.parent
TOOLS = Path(__file__).parent / "peer_tools"
VENV = Path(__file__).parent / ".peers"
NEEDS = ("torch==2.13.0", "numpy", "scikit-learn", "pandas", "plotly", "jinja2", "click", "rich", "transformers")
PATIENCE = 120  # seconds a program
FIGURES = ("faulty", "first", "first three", "healthy", "alarms on healthy", "crashes", "seconds")


@dataclass(frozen=True)
class Said:
    """What one tool said of one program, each distinct message once, in its order."""

    program: str
    messages: tuple[str, ...]
    alarms: tuple[str, ...]
    crashes: tuple[str, ...]
    seconds: float

    def rank(self, tool: str, causes: Sequence[str]) -> int:
        """Of the first message that means one of the causes, among those that mean anything; 0 for none."""
        meaning = [m for m in map(lambda m: causes_of(tool, m), self.messages) if m]
        distinct = list(dict.fromkeys(meaning))
        return next((i + 1 for i, m in enumerate(distinct) if set(m) & set(causes)), 0)


def pins() -> dict[str, str]:
    """Tool → requirement, from pyproject.toml."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    return {line.partition("==")[0]: line for line in extras["bench-peers"]}


def environment(console: Console) -> dict[str, str]:
    """Tool → "" where it is installed, else why not. Each without its dependencies: one of them asks for torch < 2."""
    python = VENV / "bin" / "python"
    if not python.exists():
        console.print(f"making {VENV} (once)")
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        _pip(*NEEDS)
    state = {}
    for tool, pin in pins().items():
        shown = subprocess.run([python, "-m", "pip", "show", "-q", tool], capture_output=True, check=False)
        state[tool] = "" if shown.returncode == 0 else _pip("--no-deps", pin)
    return state


def _pip(*what: str) -> str:
    command = [VENV / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


def run(tool: str, program: Path) -> Said:
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="whyloss-peers-") as folder:
        out = Path(folder) / "messages.jsonl"
        more = {"PYTHONPATH": str(TOOLS), "PEER_TOOL": tool, "PEER_OUT": str(out), "OMP_NUM_THREADS": "1"}
        lines: list[dict[str, Any]] = []
        try:
            subprocess.run(
                [VENV / "bin" / "python", program],
                cwd=folder,
                env=os.environ | more,
                capture_output=True,
                timeout=PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired:
            lines.append({"kind": "crash", "text": f"took more than {PATIENCE} s"})
        if out.is_file():
            lines += [json.loads(line) for line in out.read_text().splitlines()]
    said = [line for line in lines if line["kind"] == "message"]
    return Said(
        program.name,
        tuple(dict.fromkeys(line["text"] for line in said)),
        tuple(dict.fromkeys(line["text"] for line in said if line["alarm"])),
        tuple(line["text"] for line in lines if line["kind"] == "crash"),
        round(time.perf_counter() - began, 2),
    )


def compare(
    truths: Iterable[Any], workers: int, console: Console, tools: Sequence[str] | None = None
) -> dict[str, Any]:
    """Runs every installed tool, or only these, over the programs; prints a table, gives its figures. `truths`: of
    detection.py."""
    truths = list(truths)
    state = {tool: why for tool, why in environment(console).items() if tools is None or tool in tools}
    found: dict[str, Any] = {}
    for tool, missing in state.items():
        if missing:
            found[tool] = {"not installed": missing}
            continue
        found[tool] = _figures(tool, truths, _run_all(tool, truths, workers, console))
        figures = ", ".join(f"{k} {found[tool][k]}" for k in FIGURES)
        console.print(f"{tool}: {figures}", highlight=False)
    _print(found, console)
    return found


def _run_all(tool: str, truths: Sequence[Any], workers: int, console: Console) -> dict[str, Said]:
    with Progress(console=console, transient=True) as bar, ThreadPoolExecutor(workers) as pool:
        task = bar.add_task(tool, total=len(truths))
        jobs = [pool.submit(run, tool, ROOT / "corpus" / "programs" / t.program) for t in truths]
        said = {}
        for done in as_completed(jobs):
            said[done.result().program] = done.result()
            bar.advance(task)
    return said


def _figures(tool: str, truths: Sequence[Any], said: dict[str, Said]) -> dict[str, Any]:
    faulty, healthy = [t for t in truths if t.causes], [t for t in truths if not t.causes]
    ranks = [said[t.program].rank(tool, t.causes) for t in faulty]
    messages = [m for s in said.values() for m in s.messages]
    # speed and style are no alarms on the training
    alarmed = [t.program for t in healthy if any(causes_of(tool, m) != () for m in said[t.program].alarms)]
    return {
        "faulty": len(faulty),
        "first": sum(r == 1 for r in ranks),
        "first three": sum(1 <= r <= 3 for r in ranks),
        "healthy": len(healthy),
        "alarms on healthy": len(alarmed),
        "crashes": sum(bool(s.crashes) for s in said.values()),
        "seconds": round(sum(s.seconds for s in said.values()), 1),
        "unmapped": sorted({m[:80] for m in messages if causes_of(tool, m) is None}),
        "alarmed": alarmed,
        "said": {s.program: list(s.messages)[:10] for s in said.values()},
    }


def _print(found: dict[str, Any], console: Console) -> None:
    table = Table("tool", "faulty", "first", "first three", "healthy", "alarms", "crashes", "seconds")
    for tool, figures in found.items():
        if "not installed" in figures:
            table.add_row(tool, f"not installed: {figures['not installed']}")
        else:
            table.add_row(tool, *(str(figures[k]) for k in FIGURES))
    console.print(table)
    for tool, figures in found.items():
        for message in figures.get("unmapped", [])[:5]:
            console.print(f"  {tool}, means nothing to us: {message}", markup=False)


def main() -> None:
    import argparse

    from detection import read_truth

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("tune", "test"))
    parser.add_argument("--only", default="", help="programs whose name or cause holds this")
    parser.add_argument("--every", type=int, default=1, help="each so many programs one: all of them take hours")
    parser.add_argument("--tool", action="append", help="this tool alone; may be given several times")
    given = parser.parse_args()
    chosen = (t for t in read_truth() if given.split in (None, t.split))
    truths = [t for t in chosen if any(given.only in name for name in (t.program, *t.causes))][:: given.every]
    found = compare(truths, os.cpu_count() or 1, Console(), given.tool)
    results = Path(__file__).parent / "results" / "peers.json"
    results.parent.mkdir(exist_ok=True)
    results.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
