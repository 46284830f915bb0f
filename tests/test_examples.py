"""The examples, run as a user runs them: the cause named in the file's name stands first, at the right place."""

import json
from pathlib import Path

import pytest

from conftest import run_whyloss

EXAMPLES = Path(__file__).parent.parent / "examples"
PLACES = {  # what the first cause must name: a module or parameter, and the line where the user finds it
    "dead_relu": ("0.", "loss = criterion(model(xb), yb)"),
    "detached_parameters": ("encoder", ""),
    "gradient_not_cleared": ("", "opt.step()"),
    "lr_too_high": ("", "optim"),
    "unregistered_parameters": ("hidden[", "layer(x)"),
    "symmetric_init": ("0.weight", "model("),
    "vanishing_gradient": ("0.", "model("),
}


def report_of(name: str, folder: Path) -> dict:
    done = run_whyloss("run", "--out", folder / "run", EXAMPLES / f"{name}.py", cwd=folder, folder=folder / "run")
    assert done.code == 0, done.stderr
    assert "stopped observing" not in done.stderr
    return json.loads(done.report.read_text())


@pytest.mark.parametrize("name", sorted(p.stem for p in EXAMPLES.glob("*.py") if not p.stem.startswith("healthy")))
def test_a_faulty_example_has_its_cause_first(name, tmp_path):
    report = report_of(name, tmp_path)
    first = report["causes"][0]
    where, source = PLACES[name]
    assert report["verdict"] == "causes"
    assert first["name"] == name.replace("_", "-")
    assert where in (first["place"]["parameter"] or first["place"]["module"] or "")
    assert source in (first["place"]["source"] or "")


@pytest.mark.parametrize("name", sorted(p.stem for p in EXAMPLES.glob("healthy_*.py")))
def test_a_healthy_example_gives_no_alarm_and_says_what_was_checked(name, tmp_path):
    report = report_of(name, tmp_path)
    assert report["verdict"] == "healthy"
    assert [c for c in report["causes"] if c["severity"] != "info"] == []
    assert len(report["passed"]) > 15
