"""Where is the first non-finite value? The cases of tests/nonfinite_cases.py, located and under torch's anomaly mode.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/nonfinite.py

An answer is right if it names the guilty line (for a leaf: the tensor; for a healthy step: nothing). Anomaly mode is
given the benefit of the doubt: any backward node that was made on that line counts. Written to benchmarks/results/.
"""

import json
import platform
import re
import sys
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from nonfinite_cases import CASES, Case, located

RESULTS = Path(__file__).parent / "results" / "nonfinite.json"
FRAME = re.compile(r'File "[^"]*nonfinite_cases\.py", line (\d+)')


@dataclass(frozen=True)
class Answer:
    said: str
    right: bool


@dataclass(frozen=True)
class Row:
    case: str
    reference: bool
    expected: str
    locate: Answer
    anomaly: Answer


def ours(case: Case) -> Answer:
    location = located(case)
    if location.leaf is not None:
        what, same = f"{location.leaf.role} {location.leaf.name}", True
    elif location.phase == "overflow":
        what, same = f"parameter {location.place.parameter}", True
    else:
        what, same = location.op, location.place.line == case.line
    right = location.phase == case.phase and what.endswith(case.op) and same
    line = f", line {location.place.line}" if location.place.line else ""
    return Answer(f"{location.phase} {what}{line}".strip(), right)


def anomaly(case: Case) -> Answer:
    torch.manual_seed(0)
    model, step = case.build()
    if case.optimizer is not None:
        optimizer = case.optimizer(model.parameters())
        step().backward()
        optimizer.step()
        optimizer.zero_grad()
    with warnings.catch_warnings(record=True) as caught, torch.autograd.detect_anomaly():
        warnings.simplefilter("always")
        try:
            step().backward()
        except RuntimeError as error:
            node = re.search(r"Function '(\w+)'", str(error))
            lines = [int(n) for w in caught for n in FRAME.findall(str(w.message))]
            said = f"{node[1] if node else error}, line {lines[-1] if lines else '?'}"
            return Answer(said, bool(lines) and lines[-1] == case.line)
    return Answer("nothing", case.phase == "none")


def expected(case: Case) -> str:
    return f"{case.phase} {case.op}{f', line {case.line}' if case.line else ''}".strip()


def mark(answer: Answer) -> str:
    return f"{'+' if answer.right else '-'} {answer.said}"


def totals(rows: list[Row]) -> dict[str, str]:
    groups = {
        "reference, failing": [r for r in rows if r.reference and r.expected != "none"],
        "reference, all": [r for r in rows if r.reference],
        "failing": [r for r in rows if r.expected != "none"],
        "healthy": [r for r in rows if r.expected == "none"],
        "all": rows,
    }
    return {
        name: f"locate {sum(r.locate.right for r in group)}, anomaly mode {sum(r.anomaly.right for r in group)}"
        f" of {len(group)}"
        for name, group in groups.items()
    }


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    rows = []
    for case in CASES:
        row = Row(case.name, case.reference, expected(case), ours(case), anomaly(case))
        print(f"{row.case}\n    expected        {row.expected}\n    locate        {mark(row.locate)}")
        print(f"    anomaly mode  {mark(row.anomaly)}", flush=True)
        rows.append(row)
    for name, total in totals(rows).items():
        print(f"{name}: {total}")
    machine = {"torch": str(torch.__version__), "python": platform.python_version(), "system": platform.platform()}
    machine["time"] = time.strftime("%Y-%m-%d %H:%M:%S")
    found = {"machine": machine, "totals": totals(rows), "cases": [asdict(row) for row in rows]}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n")
    print(f"written to {RESULTS}")


if __name__ == "__main__":
    main()
