"""What recording a step costs, in a process of its own: overhead.py runs this for each model and variant.

    OMP_NUM_THREADS=1 .venv/bin/python benchmarks/recorded.py MODEL idle|bare|recorded STEPS

Prints JSON. `idle` runs no step: its peak memory is that of Python and torch.
"""

import json
import resource
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from overhead import MODELS

from whyloss.tape.recording import recording


def main(name: str, variant: str, steps: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found: dict[str, float] = {}
    if variant != "idle":
        found = run(name, variant == "recorded", steps)
    print(json.dumps(found | {"peak_bytes": peak_bytes()}))


def peak_bytes() -> int:
    """Of this process. What getrusage says on Linux includes that of the process which started it."""
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(name: str, recorded: bool, steps: int) -> dict[str, float]:
    """Medians of the process CPU time of a bare step, of recording one and of proving its tape, in turn."""
    _, make, batch = MODELS[name]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        x, y = batch()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    seconds: dict[str, list[float]] = {"bare": [], "recording": [], "tape": []}
    for i in range(steps + 2):
        began = time.process_time()
        step()
        between = after = time.process_time()
        if recorded:
            with recording(model, optimizer) as made:
                step()
            after = time.process_time()
            tape = made.tape()
            assert tape.faithful, tape.reason
            del made, tape
        if i >= 2:
            seconds["bare"].append(between - began)
            seconds["recording"].append(after - between)
            seconds["tape"].append(time.process_time() - after)
    return {kind: statistics.median(times) for kind, times in seconds.items()}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
