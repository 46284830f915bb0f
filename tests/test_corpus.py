"""The corpus: its table is whole, and a spread of its programs is judged right. benchmarks/detection.py runs all."""

import json
import re
import sys
from pathlib import Path

import pytest

from conftest import run_whyloss
from vocabulary import CAUSES

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from detection import PROGRAMS, TRUTH, read_truth, score

TRUTHS = read_truth()
SPREAD = [  # of the tuning side, healthy ones first
    "alternating_nmf",
    "blobs_softmax_head",
    "checkpointed_blocks",
    "diabetes_noise_floor",
    "frozen_backbone",
    "gate_thresholds_soft",
    "attentional_fm",
    "blob_segmenter",
    "cells_one_by_one",
    "colour_segments",
    "digits_bn_validated",
    "gru_reader",
    "handmade_mlp",
    "heartbeat_conv1d",
    "irregular_ode_rnn",
    "markov_words_gpt",
]


def test_every_program_has_its_truth():
    assert [t.program for t in TRUTHS] == sorted(p.name for p in PROGRAMS.glob("*.py"))
    assert len({t.program for t in TRUTHS}) == len(TRUTHS) == len(TRUTH.read_text().splitlines())


def test_the_truth_speaks_the_vocabulary():
    for truth in TRUTHS:
        assert {*truth.causes, *truth.extras} <= CAUSES, truth.program
        assert truth.why, truth.program
        assert truth.split in ("tune", "test")
        assert all(re.match("module:|parameter:.|line:.", place) for place in truth.places), truth.program


def test_twins_are_healthy_and_on_the_same_side():
    known = {t.program: t for t in TRUTHS}
    for truth in TRUTHS:
        if truth.twin:
            assert known[truth.twin].healthy != truth.healthy, truth.program
            assert known[truth.twin].split == truth.split, truth.program


def test_places_of_lines_stand_in_the_program():
    for truth in TRUTHS:
        text = (PROGRAMS / truth.program).read_text()
        lines = [place.removeprefix("line:") for place in truth.places if place.startswith("line:")]
        assert [line for line in lines if line not in text] == [], truth.program


def test_programs_know_nothing_of_their_purpose():
    for path in PROGRAMS.glob("*.py"):
        assert not re.search(r"whyloss|faulty|\bbug", path.read_text(), re.IGNORECASE), path.name


@pytest.mark.parametrize(
    "truth", [t for t in TRUTHS if t.program.removesuffix(".py") in SPREAD], ids=lambda t: t.program
)
def test_a_spread_of_programs_is_judged_right(truth, tmp_path):
    """A faulty program has its cause first, a healthy one gives no alarm."""
    folder = tmp_path / "run"
    done = run_whyloss("run", "--out", folder, PROGRAMS / truth.program, cwd=tmp_path, folder=folder)
    assert done.code == 0, done.stderr
    assert "stopped observing" not in done.stderr
    row = score(truth, json.loads(done.report.read_text()), 0.0)
    if truth.healthy:
        assert row.alarms == ()
    else:
        assert row.rank == 1, (row.said, truth.causes)
