"""Programs that no rule was tuned on, as users write them: the fault stands first, a healthy one gets no alarm."""

import json
from pathlib import Path

import pytest

from conftest import run_whyloss

PROGRAMS = Path(__file__).parent / "programs"
TRUTH = json.loads((PROGRAMS / "truth.json").read_text())


def report_of(name: str, folder: Path) -> dict:
    done = run_whyloss("run", "--out", folder / "run", PROGRAMS / name, cwd=folder, folder=folder / "run")
    assert done.code == 0, done.stderr
    assert "stopped observing" not in done.stderr
    return json.loads(done.report.read_text())


def test_every_program_has_its_truth():
    assert sorted(TRUTH) == sorted(p.name for p in PROGRAMS.glob("*.py"))


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if truth["causes"]])
def test_a_faulty_program_has_its_cause_first(name, tmp_path):
    truth, report = TRUTH[name], report_of(name, tmp_path)
    assert report["causes"], report["headline"]
    first = report["causes"][0]
    assert first["name"] in truth["causes"], report["headline"]
    assert truth["place"] in (first["place"]["parameter"] or first["place"]["module"] or "")


@pytest.mark.parametrize("name", [name for name, truth in TRUTH.items() if not truth["causes"]])
def test_a_healthy_program_gives_no_alarm(name, tmp_path):
    report = report_of(name, tmp_path)
    assert [(c["name"], c["severity"]) for c in report["causes"] if c["severity"] != "info"] == []
