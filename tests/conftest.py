"""What several test files share: the command line as a process, one recorded training, one journal made by hand."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import pytest

from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.journal import Journal

TRAIN = """
import sys, time
import torch

rate, steps, pause = float(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
x, y = torch.randn(64, 8), torch.randint(0, 3, (64,))
for step in range(steps):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(f"step {step} at {time.time():.2f}", flush=True)
    time.sleep(pause)
print("the end")
"""


@dataclass(frozen=True)
class Ran:
    """A finished `whyloss …`."""

    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / "report.json"


def environment(**more: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WHYLOSS", "PYTEST", "COV", "COLUMNS"))}
    return kept | {"OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": ""} | more


def run_whyloss(*args, cwd, folder=None, timeout=120, env=None, **options) -> Ran:
    command = [sys.executable, "-m", "whyloss", *map(str, args)]
    done = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, timeout=timeout, env=environment(**(env or {})), **options
    )
    return Ran(done.returncode, done.stdout, done.stderr, Path(folder or cwd))


@pytest.fixture
def whyloss(tmp_path):
    """`whyloss …` in an empty folder."""

    def run(*args, **options):
        return run_whyloss(*args, cwd=tmp_path, **options)

    return run


@pytest.fixture(scope="session")
def script(tmp_path_factory) -> Path:
    """A small training: rate, steps and the pause after each step as arguments."""
    path = tmp_path_factory.mktemp("script") / "train.py"
    path.write_text(TRAIN)
    return path


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, script) -> Ran:
    """40 steps that learn, run once for all tests that only look."""
    cwd = tmp_path_factory.mktemp("recorded")
    return run_whyloss("run", "--out", "run", script, 0.5, 40, 0, cwd=cwd, folder=cwd / "run")


def write_journal(folder: Path, run: Run) -> Path:
    """A run as the observer would have written it."""
    journal = Journal(folder)
    journal.event("start", format=1, script=run.facts.script, arguments=["--x"], torch="2.13.0", seeds=[3])
    for trace in run.traces:
        plain = msgspec.to_builtins(trace.tensors), msgspec.to_builtins(trace.modules)
        places = {"place": msgspec.to_builtins(trace.place), "step_place": msgspec.to_builtins(trace.step_place)}
        fixed = {"trace": trace.index, "segment": 0, "optimizer": trace.optimizer, "groups": trace.groups}
        journal.event(
            "trace", **fixed, **places, settings={}, model=trace.model, device="cpu", tensors=plain[0], modules=plain[1]
        )
        for objective in trace.objectives:
            journal.event("objective", trace=trace.index, objective=msgspec.to_builtins(objective))
        for order in trace.orders:
            journal.event("order", trace=trace.index, sequence=[msgspec.to_builtins(c) for c in order])
        for name, table in (("updates", trace.every), ("samples", trace.sampled)):
            name = f"{name}-o{trace.index}-s0"
            journal.table(name, list(table.columns))
            for step, values in zip(table.steps, np.ascontiguousarray(table.values), strict=True):
                journal.row(name, int(step), values)
    journal.metrics(5, {"val_loss": 2.0})
    journal.metrics(50, {"val_loss": 1.0})
    journal.event("end", how="finished", error="", seconds=2.0, observer_seconds=0.1)
    journal.close()
    return folder


@pytest.fixture(scope="session")
def sample(tmp_path_factory) -> Path:
    """The journal of a healthy run of 200 updates, made without torch. For looking only."""
    return write_journal(tmp_path_factory.mktemp("sample") / "run", sample_run())
