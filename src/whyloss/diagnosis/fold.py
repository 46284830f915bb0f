"""Folds findings under the findings that explain them, so that one root stands on top."""

from collections.abc import Iterable
from dataclasses import replace

from whyloss.core.finding import Finding, Place


def explains(cause: Finding, other: Finding) -> bool:
    """Either side may name the relation. An info finding explains nothing away."""
    if cause is other or cause.name == other.name or not cause.severity.alarm:
        return False
    return other.name in cause.explains or cause.name in other.explained_by


def fold(findings: list[Finding]) -> tuple[list[Finding], dict[str, str]]:
    """The roots, and for each folded finding's name the root that explains it.

    Where two findings explain each other, the one that ranks first is the root.
    """
    ordered = sorted(findings, key=rank)
    parent: dict[int, Finding] = {}
    for finding in ordered:
        above = [c for c in ordered if _over(c, finding) and not _under(c, finding, parent)]
        if above:
            parent[id(finding)] = above[0]
    roots = [f for f in ordered if id(f) not in parent]
    folded = {f.name: _root(f, parent).name for f in ordered if id(f) in parent}
    return roots, folded


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Findings of one name and severity at one line, of several optimizers, as the first of them."""
    same: dict[tuple[str, str, Place], list[Finding]] = {}
    for f in findings:
        same.setdefault((f.name, f.severity, f.place), []).append(f)
    return [_with_count(fs[0], len(fs) - 1) for fs in same.values()]


def _with_count(finding: Finding, more: int) -> Finding:
    return replace(finding, message=f"{finding.message} (and {more} more like it at this line)") if more else finding


def _over(cause: Finding, other: Finding) -> bool:
    return explains(cause, other) and not (explains(other, cause) and rank(other) <= rank(cause))


def rank(finding: Finding) -> tuple[int, bool, bool, int, int]:
    """Alarms before infos, causes before symptoms, certain before likely, then the boundary a step passes first."""
    return (
        0 if finding.severity.alarm else 1,
        finding.symptom,
        not finding.certain,
        finding.boundary.order,
        finding.first_step,
    )


def _root(finding: Finding, parent: dict[int, Finding]) -> Finding:
    while id(finding) in parent:
        finding = parent[id(finding)]
    return finding


def _under(finding: Finding, root: Finding, parent: dict[int, Finding]) -> bool:
    """Whether `finding` is already explained, through others, by `root`."""
    while id(finding) in parent:
        finding = parent[id(finding)]
        if finding is root:
            return True
    return False
