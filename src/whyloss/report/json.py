"""The report as JSON, schema 1: docs/schema/report-1.json."""

import math
from typing import Any

import msgspec

from whyloss.core.report import Report


def write_json(report: Report) -> str:
    """One object, indented, ending in a newline. A figure that is not finite is written as a string: "nan", "inf"."""
    plain = _speakable(msgspec.to_builtins(report))
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"


def read_json(text: str | bytes) -> Report:
    """Raises msgspec.ValidationError for what is no report of schema 1."""
    return msgspec.json.decode(text, type=Report)


def _speakable(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {k: _speakable(v) for k, v in value.items()}
    return [_speakable(v) for v in value] if isinstance(value, list | tuple) else value
