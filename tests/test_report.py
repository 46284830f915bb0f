"""The report as JSON and as text: two renderings of the same data, safe to print and to parse."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whyloss import NothingToJudge, diagnose, read_run
from whyloss.core.finding import Boundary, Evidence, Passed, Place, Severity, Skipped
from whyloss.core.report import Cause, Cost, Report, RuledOut, Symptom, Training
from whyloss.core.sample import flat, sample_run
from whyloss.report import clean, read_json, render_for, render_text, short_path, write_json
from whyloss.report.schema import report_schema

TRAINING = Training(
    script="train.py",
    end="finished",
    error="",
    steps=200,
    optimizers=("Adam",),
    model="Net",
    rates=(1e-3, 1e-4),
    seeds=(3,),
    dtype="float32",
    device="cpu",
    torch="2.13.0",
    python="3.11.7",
    losses=(2.3, 0.1),
)
COST = Cost(seconds=2.0, observer_seconds=0.1, first_step_seconds=0.05, share_of_later_steps=0.003)
EMPTY = Report(verdict="nothing-seen", headline="no training step was seen", training=TRAINING, cost=COST)


def cause(**changed) -> Cause:
    given_ = {
        "name": "dead-relu",
        "status": "confirmed",
        "severity": Severity.ERROR,
        "boundary": Boundary.FORWARD,
        "message": "all 32 units of relu1 are 0 on every example of 40 steps",
        "place": Place(module="relu1", parameter="fc1.bias", file="/x/train.py", line=12, source="h = self.relu1(h)"),
        "first_step": 20,
        "evidence": (Evidence("share of dead units", 1.0, 0.5, "", (0, 1, 40)), Evidence("loss", "nan")),
        "explains": ("loss-flat",),
        "change": "Set the bias to 0.",
        "verify": "Run again: fewer than half of the units are dead.",
    }
    return Cause(**(given_ | changed))


FULL = replace(
    EMPTY,
    verdict="causes",
    headline="dead-relu in relu1",
    causes=(cause(), cause(name="lr-too-high", severity=Severity.WARNING, place=Place(), evidence=())),
    symptoms=(Symptom(name="loss-flat", message="the loss stands at 2.3", explained_by="dead-relu"),),
    ruled_out=(RuledOut(name="lr-zero", reason="rates between 1e-3 and 1e-3"),),
    passed=(Passed("lr-zero", "rates between 1e-3 and 1e-3"),),
    skipped=(Skipped("clip-too-small", "no clipping was seen"),),
    metrics={"val_loss": (2.0, None)},
    folder=".whyloss/run",
)


def valid(report: Report) -> dict:
    """Its JSON, held against the published schema by a validator that is not ours."""
    plain = json.loads(write_json(report), parse_constant=pytest.fail)
    jsonschema.Draft202012Validator(report_schema()).validate(plain)
    return plain


@pytest.mark.parametrize("report", [EMPTY, FULL], ids=["empty", "full"])
def test_json_is_valid_and_reads_back_as_the_same_report(report):
    assert valid(report)["schema"] == 1
    assert read_json(write_json(report)) == report


@pytest.mark.parametrize(
    "run",
    [
        sample_run(),
        sample_run(12),
        sample_run(loss=flat(60), signals={"lr[0]": 0.0}),
        sample_run(signals={"loss/train": math.nan, "seconds": math.inf, "observer/seconds": math.nan}),
        sample_run(signals={"lr[0]": math.inf, "grad/norm[fc1.weight]": math.nan}),
    ],
    ids=["healthy", "short", "rate 0", "loss NaN", "rate infinite"],
)
def test_reports_of_runs_are_valid(run):
    report = diagnose(run, folder="run")
    assert valid(report)["verdict"] == report.verdict
    assert report.verdict in render_text(report)


def test_the_report_of_a_recorded_training_is_valid(recorded):
    text = recorded.report.read_text(encoding="utf-8")
    jsonschema.validate(json.loads(text), report_schema())
    report = read_json(text)
    assert report.training.steps == 40
    assert report == diagnose(read_run(recorded.folder), folder=report.folder)


def test_a_number_of_numpy_costs_no_report():
    figure = Evidence("figure", np.float64(2.5), np.int64(2), "", (1,))
    cause = replace(FULL.causes[0], evidence=(figure,))
    read = read_json(write_json(replace(FULL, causes=(cause,))))
    assert [(e.observed, e.limit) for e in read.causes[0].evidence] == [(2.5, 2)]


def test_what_is_not_finite_is_a_word_in_json():
    broken = Cost(seconds=math.nan, observer_seconds=math.inf, first_step_seconds=-math.inf, share_of_later_steps=None)
    evidence = (Evidence("loss", math.nan, math.inf),)
    report = replace(FULL, cost=broken, causes=(cause(evidence=evidence),), metrics={"m": (math.nan, 1.0)})
    plain = valid(report)
    assert (plain["cost"]["seconds"], plain["cost"]["first_step_seconds"]) == ("nan", "-inf")
    assert plain["causes"][0]["evidence"][0]["observed"] == "nan"
    assert math.isnan(read_json(write_json(report)).cost.seconds)
    assert "nan" in render_text(report)


WORD = st.text(max_size=20)
FIGURE = st.floats() | WORD


@settings(max_examples=40, deadline=None)
@given(
    name=WORD,
    message=st.text(max_size=200),
    observed=FIGURE,
    limit=st.none() | FIGURE,
    source=WORD,
    width=st.integers(40, 120),
)
def test_any_names_and_figures_give_valid_json_and_plain_text(name, message, observed, limit, source, width):
    made = cause(
        name=name, message=message, place=Place(module=name, source=source), evidence=(Evidence(name, observed, limit),)
    )
    report = replace(FULL, causes=(made,), headline=message)
    assert valid(report)["causes"][0]["name"] == name
    text = render_text(report, width=width)
    assert not [c for c in text if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "null", '{"schema": 1}', "\x00", "[" * 100_000, '{"verdict": "fine", "headline": ""}']
)
def test_what_is_no_report_is_refused(text):
    with pytest.raises(NothingToJudge, match="no report of whyloss"):
        read_json(text)


def test_schema_refuses_what_is_no_report():
    plain = valid(FULL)
    for broken in (plain | {"schema": 2}, plain | {"verdict": "good"}, {k: v for k, v in plain.items() if k != "cost"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(broken, report_schema())


# -- text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_text_wraps_within_the_width_and_loses_no_word(width):
    message = " ".join(f"word{i}" for i in range(80))
    text = render_text(replace(FULL, causes=(cause(message=message),)), width=width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert all(f"word{i}" in text.split() for i in range(80))
    assert "\x1b" not in text


def test_text_says_what_the_report_holds():
    text = " ".join(render_text(FULL, width=120).split())
    for part in (
        "whyloss causes dead-relu in relu1",
        "1. error dead-relu confirmed, forward boundary, since step 20",
        "fc1.bias",
        "train.py:12 `h = self.relu1(h)`",
        "share of dead units: 1 (limit 0.5), steps 0–40",
        "loss-flat: the loss stands at 2.3",
        "change Set the bias to 0.",
        "not it lr-zero",
        "not judged clip-too-small: no clipping was seen",
        "200 steps of Adam, rate 0.001, 0.0001 at the end, Net, float32 on cpu, seed 3, loss 2.3 → 0.1",
        "val_loss 2 → not finite (from run.log)",
        "run .whyloss/run",
    ):
        assert part in text


def test_rules_that_could_not_judge_for_one_reason_share_a_line():
    skipped = (Skipped("a", "too short"), Skipped("b", "no clipping"), Skipped("c", "too short"))
    text = render_text(replace(FULL, skipped=skipped))
    assert "not judged  a, c: too short\n            b: no clipping\n" in text


def test_text_of_an_empty_report():
    text = render_text(replace(EMPTY, training=replace(TRAINING, steps=0, optimizers=(), rates=())))
    assert text.startswith("whyloss nothing-seen  no training step was seen\n")
    assert "0 steps of no optimizer" in text


@pytest.mark.parametrize("end", ["running", "killed", "exception", "stopped"])
def test_text_says_how_a_run_ended_that_did_not_finish(end):
    report = replace(EMPTY, training=replace(TRAINING, end=end, error="signal SIGKILL"))
    words = {"running": "still running", "killed": "killed", "exception": "error", "stopped": "stopped by whyloss"}
    assert words[end] in render_text(report)
    assert "signal SIGKILL" in render_text(report)


MARKUP = "[red]net[/red].layers[0] [link=x]:smile: {x} %s"


def test_what_looks_like_markup_is_printed_as_it_is():
    made = cause(name=MARKUP, message=MARKUP, place=Place(parameter=MARKUP), evidence=(Evidence(MARKUP, MARKUP),))
    text = render_text(replace(FULL, headline=MARKUP, causes=(made,), metrics={MARKUP: (1.0, 2.0)}), width=120)
    assert text.count(MARKUP) >= 6


def test_control_codes_of_the_script_do_not_reach_the_terminal():
    hostile = "\x1b[31mred\x1b[0m\r\x07\x9b2J\x1b]0;title\x07 two\nlines"
    assert clean(hostile) == "red2J]0;title two\nlines"
    made = cause(message=hostile, place=Place(source=hostile))
    text = render_text(replace(FULL, headline=hostile, causes=(made,)))
    assert not set(text) & set("\x1b\r\x07\x9b")


def test_colour_is_for_terminals_that_want_it(monkeypatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    class Stream:
        def __init__(self, tty):
            self.isatty = lambda: tty
            self.fileno = lambda: os.open(os.devnull, os.O_RDONLY)

    assert "\x1b[" in render_for(FULL, Stream(True))
    assert "\x1b[" not in render_for(FULL, Stream(False))
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in render_for(FULL, Stream(False))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render_for(FULL, Stream(True))
    monkeypatch.setenv("COLUMNS", "60")
    assert max(len(line) for line in render_for(FULL, Stream(False)).splitlines()) <= 60


def test_a_notebook_or_a_dumb_terminal_changes_nothing(monkeypatch):
    plain = render_text(FULL)
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert render_text(FULL) == plain


def test_paths_below_the_working_directory_are_shown_from_there(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert short_path(str(tmp_path / "a" / "b.py")) == str(Path("a", "b.py"))
    assert short_path("/x") == "/x"
