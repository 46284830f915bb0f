"""The report as JSON, schema 1: docs/schema/report-1.json."""

import msgspec
import numpy as np

from whyloss.core.errors import NothingToJudge
from whyloss.core.plain import speakable
from whyloss.core.report import Report


def write_json(report: Report) -> str:
    """One object, indented, ending in a newline. A figure that is not finite is written as a string: "nan", "inf"."""
    plain = speakable(msgspec.to_builtins(report, enc_hook=_plain))
    return msgspec.json.format(msgspec.json.encode(plain), indent=2).decode() + "\n"


def _plain(value: object) -> object:
    """A number of NumPy, as a rule of somebody else's may give one, must not cost the whole report."""
    if isinstance(value, np.generic):
        return value.item()
    msg = f"a report can't hold {type(value).__name__}"
    raise TypeError(msg)


def read_json(text: str | bytes) -> Report:
    """NothingToJudge for what is no report of schema 1."""
    try:
        return msgspec.json.decode(text, type=Report, strict=False)  # not strict: "nan" and "inf" are figures
    except (msgspec.DecodeError, RecursionError) as error:
        msg = f"this is no report of whyloss, schema 1: {error}"
        raise NothingToJudge(msg) from error
