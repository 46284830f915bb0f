"""What the documents say is run."""

import re
from pathlib import Path

import numpy as np
import pytest

import cause_pages
from whyloss import read_run
from whyloss.journal.events import KINDS
from whyloss.journal.rows import HEAD, LIMIT, RowWriter, read_table, thin_type
from whyloss.report.schema import schema_text

DOCS = Path(__file__).parent.parent / "docs"


@pytest.fixture(scope="module")
def readers():
    """The Python in docs/journal.md, executed."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "journal.md").read_text(encoding="utf-8"), re.DOTALL)
    assert len([line for line in blocks[0].splitlines() if line.strip()]) <= 12
    namespace: dict = {}
    exec("\n".join(blocks), namespace)
    return namespace


def test_the_reader_in_the_document_agrees_with_read_run(readers, recorded):
    every = read_run(recorded.folder).traces[0].every
    read = [readers["read_rows"](path) for path in sorted(recorded.folder.glob("updates-o0-s*-r0.rows"))]
    assert [int(step) for _, rows in read for step in rows["step"]] == every.steps.tolist()
    for column, values in (("loss/train", every.series("loss/train")), ("lr[0]", every.series("lr[0]"))):
        assert values is not None
        got = [row["values"][columns.index(column)] for columns, rows in read for row in rows]
        assert got == values.values.tolist()


def test_the_reader_of_series_agrees_on_a_thinned_table(readers, tmp_path):
    writer = RowWriter(tmp_path / "t.rows", ["a", "b"], head=8, limit=64)
    for step in range(1000):
        writer.append(step, np.array([step, np.sin(step)]))
    writer.close()
    table = read_table(writer.path)
    for part, got in zip(
        (table.steps, table.values[:, 1], table.low[:, 1], table.high[:, 1]),
        readers["read_series"](writer.path, "b"),
        strict=True,
    ):
        assert got.tolist() == part.tolist()


def test_the_document_names_every_event_and_the_limits():
    text = (DOCS / "journal.md").read_text(encoding="utf-8")
    events = text[text.index("## Events") :]
    assert set(re.findall(r"^\| `(\w+)` \|", events, re.MULTILINE)) == set(KINDS)
    column = thin_type(2).itemsize - thin_type(1).itemsize
    assert (LIMIT, HEAD, column) == (4096, 256, 28)
    assert "4096 × 8 + 2048 × 28 bytes, 90 kB" in text


def test_the_schema_is_the_one_that_the_types_give():
    """Else: .venv/bin/python -m whyloss.report.schema > docs/schema/report-1.json"""
    assert (DOCS / "schema" / "report-1.json").read_text(encoding="utf-8") == schema_text()


def test_the_pages_of_causes_are_what_the_rules_say():
    """`make cause-pages` writes them."""
    written = {path.name: path.read_text(encoding="utf-8") for path in (DOCS / "causes").glob("*.md")}
    assert written == cause_pages.pages()
