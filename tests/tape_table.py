"""The table of models in docs/tape.md: what a tape of a step of each says.

.venv/bin/python tests/tape_table.py
"""

import warnings
from dataclasses import dataclass
from pathlib import Path

import torch

from tape_models import CASES, Case
from whyloss.tape.recording import recording

PAGE = Path(__file__).parent.parent / "docs" / "tape.md"
BEGIN, END = "<!-- models: begin -->", "<!-- models: end -->"
HEAD = ("| step | calls | replayed | losses | gradients |", "|---|---|---|---|---|")


@dataclass(frozen=True)
class Row:
    name: str
    text: str


def tapes_of(training):
    """Of one step: a tape for each update, or each clearing of all gradients."""
    with recording(training.model) as step:
        training.step()
    assert not step.recorder.broken, step.recorder.broken
    return step.tapes()


def row(case: Case, tapes) -> Row:
    last = tapes[-1]
    wanted = [leaf for leaf in last.leaves.values() if leaf.requires_grad and not leaf.carried]
    replayed = "bit for bit" if last.faithful else f"not: {last.reason.split(' (')[0]}"
    parts = f", {len(tapes)} tapes" if len(tapes) > 1 else ""
    losses = len(last.losses)
    text = f"| {case.name.replace('_', ' ')} | {len(last.ops)}{parts} | {replayed} | {losses} | {len(wanted)} |"
    return Row(case.name, text)


def table(rows) -> str:
    return "\n".join((*HEAD, *(row.text for row in rows)))


def written() -> str:
    text = PAGE.read_text(encoding="utf-8")
    return text[text.index(BEGIN) + len(BEGIN) : text.index(END)].strip()


def make(case: Case):
    torch.manual_seed(0)
    return case.make()


def main() -> None:
    warnings.simplefilter("ignore")
    rows = [row(case, tapes_of(make(case))) for case in CASES.values()]
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    PAGE.write_text(f"{head}\n\n{table(rows)}\n\n{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
