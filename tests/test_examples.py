"""The examples, run as a user runs them: the cause named in the file's name stands first, at the right place."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
PLACES = {  # what the first cause must name: a module or parameter, and the line where the user finds it
    "dead_relu": ("0.", "loss = loss_fn(model(images), labels)"),
    "detached_parameters": ("encoder", ""),
    "gradient_not_cleared": ("", "optimizer.step()"),
    "lr_too_high": ("", "optim"),
    "optimizer_missing_parameters": ("layers[", "optim"),
    "symmetric_init": ("", ""),
    "vanishing_gradient": ("", ""),
}


def whyloss_run(script: Path, folder: Path) -> dict:
    command = [sys.executable, "-m", "whyloss", "run", "--out", str(folder), str(script)]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "stopped observing" not in done.stderr
    return json.loads((folder / "report.json").read_text())


@pytest.mark.parametrize("name", sorted(p.stem for p in EXAMPLES.glob("*.py") if not p.stem.startswith("healthy")))
def test_a_faulty_example_has_its_cause_first(name, tmp_path):
    report = whyloss_run(EXAMPLES / f"{name}.py", tmp_path / "run")
    first = report["causes"][0]
    where, source = PLACES[name]
    assert report["verdict"] == "causes"
    assert first["name"] == name.replace("_", "-")
    assert where in (first["place"]["parameter"] or first["place"]["module"] or "")
    assert source in (first["place"]["source"] or "")


@pytest.mark.parametrize("name", sorted(p.stem for p in EXAMPLES.glob("healthy_*.py")))
def test_a_healthy_example_gives_no_alarm_and_says_what_was_checked(name, tmp_path):
    report = whyloss_run(EXAMPLES / f"{name}.py", tmp_path / "run")
    assert report["verdict"] == "healthy"
    assert [c for c in report["causes"] if c["severity"] != "info"] == []
    assert len(report["passed"]) > 15
