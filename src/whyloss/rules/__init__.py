"""One file a rule: a pure function of a Run. Found by being here, or through the entry-point group whyloss.rules."""

from whyloss.rules.registry import all_rules, find
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

__all__ = ["Example", "Rule", "all_rules", "find", "fires", "silent", "threshold"]
