"""Finds the rules: every module below whyloss/rules that defines one, and the entry points of other packages."""

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import Any

from whyloss.core.errors import Misuse
from whyloss.rules.rule import Rule

NOT_BUILT = {
    "replicas-diverged": "needs several processes",
    "model-bypasses-ddp": "needs several processes",
}  # words of the vocabulary that no rule says yet, and why


@cache
def all_rules() -> tuple[Rule, ...]:
    """One instance each, in boundary order, then by name."""
    package = importlib.import_module("whyloss.rules")
    modules = [m.name for m in pkgutil.walk_packages(package.__path__, "whyloss.rules.") if not m.ispkg]
    classes = [cls for name in modules for cls in _rules_in(importlib.import_module(name))]
    for point in _entry_points():
        classes.append(_checked(point.load(), point.value))
    rules = [cls() for cls in classes]
    _refuse_duplicates(rules)
    return tuple(sorted(rules, key=lambda r: (r.boundary.order, r.name)))


def _entry_points() -> Iterable[Any]:
    from importlib.metadata import entry_points  # 25 ms, so only here

    return entry_points(group="whyloss.rules")


def find(name: str) -> Rule:
    """The rule of that name. Misuse, with the nearest names, where there is none."""
    import difflib

    rules = {rule.name: rule for rule in all_rules()}
    if name in rules:
        return rules[name]
    near = difflib.get_close_matches(name, rules, n=3) or sorted(rules)[:3]
    msg = f"no rule or cause is called '{name}'. Close: {', '.join(near)}. `whyloss explain --all` lists them"
    raise Misuse(msg)


def _rules_in(module: object) -> list[type[Rule]]:
    found = [v for v in vars(module).values() if isinstance(v, type) and issubclass(v, Rule) and v is not Rule]
    return [cls for cls in found if cls.__module__ == getattr(module, "__name__", "")]


def _checked(loaded: object, origin: str) -> type[Rule]:
    if not (isinstance(loaded, type) and issubclass(loaded, Rule)):
        msg = (
            f"entry point {origin} in group whyloss.rules is {loaded!r}: a subclass of whyloss.rules.Rule was expected"
        )
        raise Misuse(msg)
    return loaded


def _refuse_duplicates(rules: list[Rule]) -> None:
    names = [rule.name for rule in rules]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        origins = [f"{type(r).__module__}" for r in rules if r.name in twice]
        msg = f"rules share a name: {', '.join(sorted(twice))} in {', '.join(origins)}"
        raise Misuse(msg)
