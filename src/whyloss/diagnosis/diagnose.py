"""Runs every rule on a run and says what stands."""

import math
from collections.abc import Iterable

import numpy as np

from whyloss.core.finding import Finding, Outcome, Passed, Skipped
from whyloss.core.report import Cause, Cost, Report, RuledOut, Status, Symptom, Training, Verdict
from whyloss.core.run import Run, Trace
from whyloss.core.series import Series
from whyloss.diagnosis.fold import fold, merged, rank
from whyloss.rules import Rule, all_rules
from whyloss.rules.rule import RUN_FOLDER

CURVE_UPDATES = 20  # below that many updates a curve says nothing, and "healthy" would be a guess


def diagnose(run: Run, *, folder: str = "") -> Report:
    """The report of a run. The verdict is `nothing-seen` where no cause, update or backward pass was observed."""
    outcomes = run_rules(run)
    findings = merged(o for o in outcomes if isinstance(o, Finding))
    roots, folded = fold(findings)
    causes = tuple(_cause(f, findings, folded, folder) for f in roots)
    alarms = [f for f in roots if f.severity.alarm]
    passed = _passed(outcomes, findings)
    skipped = _skipped(outcomes, findings, passed)
    verdict = _verdict(run, alarms)
    return Report(
        verdict=verdict,
        headline=_headline(run, verdict, alarms, len(passed)),
        causes=causes,
        symptoms=tuple(
            Symptom(name=f.name, message=f.message, explained_by=folded[f.name])
            for f in sorted(findings, key=rank)
            if f.name in folded and f not in roots
        ),
        ruled_out=_ruled_out(findings, passed),
        passed=passed,
        skipped=skipped,
        training=_training(run),
        metrics={name: _ends(series) for name, series in run.metrics.items()},
        cost=_cost(run),
        folder=folder,
    )


def run_rules(run: Run, rules: Iterable[Rule] | None = None) -> list[Outcome]:
    """What each rule says; a rule that raises is reported as skipped, never as passed."""
    outcomes: list[Outcome] = []
    with np.errstate(all="ignore"):  # rules test finiteness themselves
        for rule in all_rules() if rules is None else rules:
            try:
                outcomes += list(rule.check(run)) or [Skipped(rule.name, "no training step was observed")]
            except Exception as error:  # noqa: BLE001 - one faulty rule must not take the report with it
                outcomes.append(Skipped(rule.name, f"the rule failed: {type(error).__name__}: {error}"))
    return outcomes


def _cause(finding: Finding, findings: list[Finding], folded: dict[str, str], folder: str) -> Cause:
    status: Status = "confirmed" if finding.certain else "untested" if finding.symptom else "supported"
    below = tuple(dict.fromkeys(f.name for f in findings if folded.get(f.name) == finding.name))
    return Cause(
        name=finding.name,
        status=status,
        severity=finding.severity,
        boundary=finding.boundary,
        message=finding.message,
        place=finding.place,
        first_step=finding.first_step,
        evidence=finding.evidence,
        explains=below,
        change=finding.change,
        verify=finding.verify.replace(RUN_FOLDER, folder or RUN_FOLDER),
    )


def _verdict(run: Run, alarms: list[Finding]) -> Verdict:
    if any(not f.symptom for f in alarms):
        return "causes"
    if not run.updates and not run.pending:
        return "nothing-seen"
    if alarms or run.updates < CURVE_UPDATES or run.facts.detached:
        return "unclear"
    return "healthy"


def _headline(run: Run, verdict: Verdict, alarms: list[Finding], checks: int) -> str:
    if verdict == "nothing-seen":
        return "no training step was seen"
    if verdict == "causes":
        return _causes_line(alarms)
    if verdict == "unclear" and alarms:
        return f"{alarms[0].name}, and no cause that whyloss can see so far explains it"
    if verdict == "unclear" and run.facts.detached:
        return f"observation ended after {run.updates} updates, before the training did; {checks} checks passed"
    if verdict == "unclear":
        return f"{run.updates} updates are too few to judge the curve; {checks} checks passed"
    return f"nothing is wrong as far as {checks} checks can see over {run.updates} updates"


def _causes_line(alarms: list[Finding]) -> str:
    """The first root with its place, and how many others stand beside it."""
    root = alarms[0]
    others = f", and {len(alarms) - 1} more" if len(alarms) > 1 else ""
    return f"{root.name}{f' in {where}' if (where := root.place.parameter or root.place.module) else ''}{others}"


def _passed(outcomes: list[Outcome], findings: list[Finding]) -> tuple[Passed, ...]:
    found = {f.name for f in findings}
    first: dict[str, Passed] = {}
    for o in outcomes:
        if isinstance(o, Passed) and o.rule not in found:
            first.setdefault(o.rule, o)
    return tuple(first.values())


def _skipped(outcomes: list[Outcome], findings: list[Finding], passed: tuple[Passed, ...]) -> tuple[Skipped, ...]:
    spoke = {f.name for f in findings} | {p.rule for p in passed}
    first: dict[str, Skipped] = {}
    for o in outcomes:
        if isinstance(o, Skipped) and o.rule not in spoke:
            first.setdefault(o.rule, o)
    return tuple(first.values())


def _ruled_out(findings: list[Finding], passed: tuple[Passed, ...]) -> tuple[RuledOut, ...]:
    """Causes that would explain a symptom of this run, whose rule looked and saw nothing."""
    symptoms = [f for f in findings if f.symptom and f.severity.alarm]
    names = {name for f in symptoms for name in f.explained_by}
    names |= {r.name for r in all_rules() if not r.symptom and any(f.name in r.explains for f in symptoms)}
    return tuple(RuledOut(name=p.rule, reason=p.observed) for p in passed if p.rule in names)


def _training(run: Run) -> Training:
    f = run.facts
    last = run.traces[-1] if run.traces else None
    loss = run.traces[0].loss if run.traces else None
    return Training(
        script=f.script,
        end=f.end,
        error=f.error,
        steps=run.updates,
        optimizers=tuple(t.optimizer for t in run.traces),
        model=last.model if last else "",
        rates=_rates(last) if last else (),
        seeds=f.seeds,
        dtype=f.dtype,
        device=f.device,
        torch=f.torch,
        python=f.python,
        losses=_ends(loss) if loss is not None else (None, None),
    )


def _rates(trace: Trace) -> tuple[float, ...]:
    rates = (trace.signal(f"lr[{g}]") for g in range(trace.groups))
    return tuple(r.last for r in rates if r is not None and math.isfinite(r.last))


def _ends(series: Series) -> tuple[float | None, float | None]:
    first, last = series.first, series.last
    return (first if math.isfinite(first) else None, last if math.isfinite(last) else None)


def _cost(run: Run) -> Cost:
    """Per-update figures come from the rows; thinned rows are means over their steps."""
    first, later, span = 0.0, 0.0, 0.0
    for trace in run.traces:
        inside, clock = trace.signal("observer/seconds"), trace.signal("seconds")
        if inside is None or clock is None or len(clock) < 2:
            continue
        first += inside.first
        widths = np.diff(inside.steps, append=inside.steps[-1] + 1)
        later += float((inside.values * widths)[1:].sum())
        span += clock.last - clock.first
    return Cost(
        seconds=run.facts.seconds,
        observer_seconds=run.facts.observer_seconds,
        first_step_seconds=first,
        share_of_later_steps=later / span if span > 0 else None,
    )
