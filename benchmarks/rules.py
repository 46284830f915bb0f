"""What the rules cost: all of them over a made-up run of 10,000 updates and 200 layers.

    .venv/bin/python benchmarks/rules.py

Bar: 2 s for all rules together. Prints the slowest and writes benchmarks/results/rules.json.
"""

import json
import time
from pathlib import Path

from whyloss.core.run import Run
from whyloss.core.sample import falling, sample_modules, sample_run, sample_tensors
from whyloss.diagnosis.diagnose import run_rules
from whyloss.rules import all_rules

UPDATES, LAYERS, BAR = 10_000, 200, 2.0
RESULTS = Path(__file__).parent / "results" / "rules.json"


def long_run() -> Run:
    widths = (64, *(32,) * (LAYERS - 1), 10)
    return sample_run(loss=falling(UPDATES), tensors=sample_tensors(widths), modules=sample_modules(widths), every=10)


def seconds(run: Run) -> dict[str, float]:
    """Of each rule, the best of three."""
    taken: dict[str, float] = {}
    for rule in all_rules():
        for _ in range(3):
            began = time.perf_counter()
            run_rules(run, [rule])
            taken[rule.name] = min(taken.get(rule.name, 1e9), time.perf_counter() - began)
    return taken


def main() -> None:
    taken = seconds(long_run())
    total = sum(taken.values())
    for name, spent in sorted(taken.items(), key=lambda item: -item[1])[:12]:
        print(f"{name:34} {1000 * spent:8.1f} ms")
    print(f"{'all ' + str(len(taken)) + ' rules':34} {1000 * total:8.1f} ms  (bar {1000 * BAR:.0f})")
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"updates": UPDATES, "layers": LAYERS, "seconds": taken, "total": total}, indent=1))


if __name__ == "__main__":
    main()
