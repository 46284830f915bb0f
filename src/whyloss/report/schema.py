"""The JSON schema of a report, made from its types: `python -m whyloss.report.schema`."""

import sys
from typing import Any

import msgspec

from whyloss.core.report import Report


def report_schema() -> dict[str, Any]:
    schema = msgspec.json.schema(Report)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "whyloss report, schema 1"}
    return head | schema


if __name__ == "__main__":
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(report_schema()), indent=2).decode() + "\n")
