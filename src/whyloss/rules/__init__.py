"""One file a rule: a pure function of a Run. Found by being here, or through the entry-point group whyloss.rules."""

from whyloss.rules.registry import NOT_BUILT, all_rules, find
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

__all__ = ["NOT_BUILT", "Example", "Rule", "all_rules", "find", "fires", "silent", "threshold"]
