"""whyloss explain"""

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterator
from dataclasses import fields

import click

from whyloss import rules
from whyloss.core.errors import Misuse
from whyloss.rules import NOT_BUILT, Rule, all_rules, find


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name", required=False)
@click.option("--all", "everything", is_flag=True, help="List every cause and symptom.")
def explain(name: str | None, everything: bool) -> None:
    """Print what a cause means and how it is recognised.

    Its thresholds and why, what else looks like it, what to do, and what its rule says of its own examples.
    """
    if everything == (name is not None):
        msg = "give the name of a cause, or --all: `whyloss explain dead-relu`, `whyloss explain --all`"
        raise Misuse(msg)
    lines = catalogue() if name is None else page(_rule_in_file(name) or find(name))
    sys.stdout.write("\n".join(lines) + "\n")


def _rule_in_file(name: str) -> Rule | None:
    """The rule whose file has its name, as all of ours do: spares the loading of every other one."""
    file = name.replace("-", "_")
    for module in pkgutil.walk_packages(rules.__path__, "whyloss.rules."):
        if module.name.endswith(f".{file}") and not module.ispkg:
            found = vars(importlib.import_module(module.name)).values()
            kinds = [v for v in found if isinstance(v, type) and issubclass(v, Rule) and v is not Rule]
            return next((kind() for kind in kinds if kind.name == name), None)
    return None


def catalogue() -> Iterator[str]:
    """Every rule in a line, by boundary."""
    boundary = None
    for rule in all_rules():
        if rule.boundary != boundary:
            yield f"{'' if boundary is None else chr(10)}{rule.boundary}"
            boundary = rule.boundary
        yield f"  {rule.name:30} {_summary(rule)}"
    yield "\nnot built yet"
    yield from (f"  {name:30} {reason}" for name, reason in NOT_BUILT.items())


def page(rule: Rule) -> Iterator[str]:
    """The rule's page; its examples are run on the spot, and what they give is what is printed."""
    from whyloss.core.finding import Finding
    from whyloss.diagnosis.diagnose import run_rules

    yield f"# {rule.name}"
    yield f"{rule.boundary} boundary, {'symptom' if rule.symptom else 'cause'}"
    yield ""
    yield inspect.getdoc(rule) or ""
    if fields(rule):
        yield "## Thresholds"
        for f in fields(rule):
            yield f"- {f.name} = {getattr(rule, f.name):g} {f.metadata['unit']}: {f.metadata['why']}"
    yield from _relations(rule)
    yield "## Examples"
    for example in rule.examples():
        yield f"- {example.title}"
        found = [o for o in run_rules(example.run, [rule]) if isinstance(o, Finding)]
        for finding in found:
            yield f"    → {finding.severity}: {finding.message}"
        if not found:
            yield "    → nothing reported"
    yield f"## Change\n{rule.change}\n## Verify\n{rule.verify}"
    if rule.references:
        yield "## References"
        yield from (f"- {reference}" for reference in rule.references)


def _relations(rule: Rule) -> Iterator[str]:
    if rule.explains:
        yield f"## Explains\n{', '.join(rule.explains)}"
    if rule.explained_by:
        yield f"## Explained by\n{', '.join(rule.explained_by)}"


def _summary(rule: Rule) -> str:
    return (inspect.getdoc(rule) or "").splitlines()[0]
