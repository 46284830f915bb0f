"""Folding: one root on top, its consequences beneath it."""

from typing import Any

from whyloss.core.finding import Boundary, Finding, Place, Severity
from whyloss.core.run import Run
from whyloss.core.sample import falling, flat, sample_run
from whyloss.diagnosis import diagnose
from whyloss.diagnosis.fold import fold, merged


def finding(name: str, **fields: Any) -> Finding:
    given: dict[str, Any] = {"boundary": Boundary.UPDATE, "severity": Severity.ERROR, "message": name, "evidence": ()}
    return Finding(name=name, **(given | fields))


def test_a_cause_takes_its_symptoms_under_it():
    roots, folded = fold([finding("flat", symptom=True), finding("zero", explains=("flat",))])
    assert [f.name for f in roots] == ["zero"]
    assert folded == {"flat": "zero"}


def test_what_several_optimizers_show_at_one_line_is_one_finding():
    """The first stays and says how many there are; what stands at another line is another finding."""
    here, there = Place(file="train.py", line=7), Place(file="train.py", line=9)
    given = [
        finding("noisy", message=f"level {k}", place=p, first_step=k) for k, p in enumerate((here, there, here, here))
    ]
    assert [f.message for f in merged(given)] == ["level 0 (and 2 more like it at this line)", "level 1"]


def test_a_symptom_can_name_the_cause_itself():
    """So that a new symptom stands in one file."""
    roots, folded = fold([finding("flat", symptom=True, explained_by=("zero",)), finding("zero")])
    assert ([f.name for f in roots], folded) == (["zero"], {"flat": "zero"})


def test_a_chain_ends_at_its_root():
    chain = [finding("a", explains=("b",)), finding("b", explains=("c",)), finding("c", symptom=True)]
    roots, folded = fold(chain)
    assert [f.name for f in roots] == ["a"]
    assert folded == {"b": "a", "c": "a"}


def test_mutual_explanation_keeps_the_certain_one_on_top():
    sure, guess = finding("sure", certain=True, explains=("guess",)), finding("guess", explains=("sure",))
    assert fold([guess, sure]) == ([sure], {"guess": "sure"})


def test_a_circle_of_three_keeps_one_root():
    circle = [finding("a", explains=("b",)), finding("b", explains=("c",)), finding("c", explains=("a",))]
    roots, folded = fold(circle)
    assert len(roots) == 1
    assert len(folded) == 2


def test_an_info_finding_explains_nothing_away():
    note = finding("note", severity=Severity.INFO, explains=("flat",))
    roots, folded = fold([note, finding("flat", symptom=True)])
    assert [f.name for f in roots] == ["flat", "note"]
    assert folded == {}


def test_independent_faults_are_both_reported():
    roots, _ = fold([finding("b", boundary=Boundary.UPDATE), finding("a", boundary=Boundary.FORWARD)])
    assert [f.name for f in roots] == ["a", "b"]


def test_no_run_gives_nothing_seen():
    report = diagnose(Run())
    assert (report.verdict, report.causes) == ("nothing-seen", ())


def test_a_short_run_is_not_called_healthy():
    assert diagnose(sample_run(loss=falling(10))).verdict == "unclear"


def test_a_run_that_learns_is_healthy_and_says_what_was_checked():
    report = diagnose(sample_run())
    assert (report.verdict, report.alarms) == ("healthy", ())
    assert len(report.passed) > 10


def test_a_flat_loss_at_rate_zero_has_the_rate_on_top():
    report = diagnose(sample_run(loss=flat(200), signals={"lr[0]": 0.0}))
    assert report.causes[0].name == "lr-zero"
    assert "loss-flat" in report.causes[0].explains
    assert {s.name for s in report.symptoms} >= {"loss-flat"}


def test_a_symptom_without_a_cause_is_unclear_and_lists_what_it_is_not():
    report = diagnose(sample_run(loss=flat(200)))
    assert report.verdict == "unclear"
    assert report.causes[0].status == "untested"
    assert "lr-zero" in {r.name for r in report.ruled_out}
