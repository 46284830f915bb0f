"""The JSON schema of a report, made from its types: `python -m whyloss.report.schema`."""

import sys
from typing import Any

import msgspec

from whyloss.core.report import Report

NUMBER = {"type": "number"}
NOT_FINITE = {"enum": ["nan", "inf", "-inf"]}  # JSON has no word for them


def report_schema() -> dict[str, Any]:
    schema = msgspec.json.schema(Report)
    schema["$defs"]["Report"]["properties"]["schema"] = {"const": 1}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "whyloss report, schema 1"}
    speakable: dict[str, Any] = _speakable(schema)
    return head | speakable


def _speakable(schema: Any) -> Any:
    """Wherever a number may stand, the words for what is not finite may too."""
    if schema == NUMBER:
        return {"anyOf": [NUMBER, NOT_FINITE]}
    if isinstance(schema, dict):
        return {key: _speakable(value) for key, value in schema.items()}
    if not isinstance(schema, list):
        return schema
    open_ended = NUMBER in schema and {"type": "string"} not in schema
    return [*schema, NOT_FINITE] if open_ended else schema if NUMBER in schema else [_speakable(v) for v in schema]


def schema_text() -> str:
    """As it stands in docs/schema/report-1.json."""
    return msgspec.json.format(msgspec.json.encode(report_schema()), indent=2).decode() + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
