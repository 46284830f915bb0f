"""What holds for every rule, present and future."""

import dataclasses
import inspect
import re

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vocabulary import BY_BOUNDARY, CAUSES
from whyloss.core.finding import Finding, Passed, Skipped
from whyloss.core.run import Facts, Run
from whyloss.core.sample import sample_run
from whyloss.core.series import ABSENT, NOT_OBSERVED
from whyloss.rules import NOT_BUILT, Rule, all_rules

HEADINGS = ["What it detects", "Why it matters", "What else looks like this", "What to do"]
EXAMPLES = [
    pytest.param(rule, example, id=f"{rule.name}-{example.title}")
    for rule in all_rules()
    for example in rule.examples()
]
each_rule = pytest.mark.parametrize("rule", all_rules(), ids=lambda r: r.name)


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_examples_hold(rule: Rule, example):
    """A firing example gives an alarm of the stated severity, a near miss gives none."""
    findings = [o for o in rule.check(example.run) if isinstance(o, Finding)]
    alarms = [f for f in findings if f.severity.alarm]
    if not example.fires:
        assert alarms == []
    elif example.severity is not None:
        assert example.severity in {f.severity for f in findings}
    else:
        assert alarms


@pytest.mark.parametrize(("rule", "example"), EXAMPLES)
def test_findings_hold_plain_numbers(rule: Rule, example):
    """A NumPy number would keep the report from being written."""
    for finding in (o for o in rule.check(example.run) if isinstance(o, Finding)):
        msgspec.json.encode(finding)


@each_rule
def test_page_has_the_four_headings(rule: Rule):
    """The docstring is the page: a first line, then four headings in order."""
    page = inspect.getdoc(rule)
    assert page is not None
    assert re.findall(r"^## (.+)$", page, re.M) == HEADINGS
    assert page.splitlines()[0].endswith(".")


@each_rule
def test_name_file_and_class_agree(rule: Rule):
    """lr-zero stands in lr_zero.py as LrZero."""
    assert type(rule).__module__.rpartition(".")[2] == rule.name.replace("-", "_")
    assert type(rule).__name__.lower() == rule.name.replace("-", "")
    assert type(rule).__module__.split(".")[-2] == rule.boundary


@each_rule
def test_every_threshold_has_unit_and_reason(rule: Rule):
    for f in dataclasses.fields(rule):
        assert f.metadata.get("unit"), f.name
        assert len(f.metadata.get("why", "")) > 20, f.name


@each_rule
def test_shows_what_it_fires_on_and_what_it_does_not(rule: Rule):
    kinds = {example.fires for example in rule.examples()}
    assert kinds == {True, False}


@each_rule
def test_says_what_to_change_and_how_to_verify(rule: Rule):
    assert rule.change
    assert rule.verify


def test_relations_name_words_of_the_vocabulary():
    for rule in all_rules():
        assert set(rule.explains + rule.explained_by) <= CAUSES, rule.name


def test_every_word_of_the_vocabulary_has_a_rule_or_a_reason_why_not():
    assert {rule.name for rule in all_rules()} | NOT_BUILT.keys() == CAUSES
    assert not {rule.name for rule in all_rules()} & NOT_BUILT.keys()


def test_rules_stand_at_the_boundary_that_the_vocabulary_gives():
    for rule in all_rules():
        assert rule.name in BY_BOUNDARY[rule.boundary].split() or rule.boundary == "evaluation", rule.name
        assert rule.name not in rule.explains + rule.explained_by


@each_rule
def test_an_empty_run_is_not_healthy_and_not_an_error(rule: Rule):
    """Nothing recorded: no finding, no crash."""
    assert not [o for o in rule.check(Run()) if isinstance(o, Finding)]


@each_rule
def test_the_sample_run_is_healthy(rule: Rule):
    outcomes = list(rule.check(sample_run()))
    assert not [o for o in outcomes if isinstance(o, Finding) and o.severity.alarm]
    assert all(isinstance(o, Finding | Passed | Skipped) for o in outcomes)
    assert outcomes, "a rule says that it passed or was skipped"


odd = st.sampled_from([0.0, -1.0, 1.0, 1e-30, 1e30, np.inf, -np.inf, np.nan, NOT_OBSERVED, ABSENT])


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_run_makes_a_rule_raise(data):
    """Empty, constant, NaN, infinite and unobserved signals, of any length."""
    updates = data.draw(st.sampled_from([1, 2, 5, 21, 130]))
    base = sample_run(updates)
    trace = base.traces[0]
    names = data.draw(st.lists(st.sampled_from([*trace.every.columns, *trace.sampled.columns]), max_size=12))
    signals = {n: data.draw(odd) if data.draw(st.booleans()) else np.array([data.draw(odd)] * updates) for n in names}
    run = sample_run(
        updates, signals=signals, facts=Facts(end=data.draw(st.sampled_from(["running", "killed", "finished"])))
    )
    with np.errstate(all="ignore"):
        for rule in all_rules():
            list(rule.check(run))
