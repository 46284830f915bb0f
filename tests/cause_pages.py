"""The pages of docs/causes: what `whyloss explain` prints of each rule.

.venv/bin/python tests/cause_pages.py
"""

from pathlib import Path

from whyloss.cli.explain import page
from whyloss.rules import Rule, all_rules

FOLDER = Path(__file__).parent.parent / "docs" / "causes"
HEAD = "Written by `make cause-pages` from the rules; `whyloss explain NAME` prints the same."


def text_of(rule: Rule) -> str:
    lines = "\n".join(page(rule)).split("\n")
    spaced = (f"\n{line}\n" if line.startswith("#") else line for line in lines)
    return "\n".join(spaced).strip().replace("\n\n\n", "\n\n") + "\n"


def index() -> str:
    lines = ["# Causes and symptoms", "", HEAD]
    boundary = None
    for rule in all_rules():
        if rule.boundary != boundary:
            boundary = rule.boundary
            lines += ["", f"## {boundary}", ""]
        first = (type(rule).__doc__ or "").strip().splitlines()[0]
        lines.append(f"- [{rule.name}]({rule.name}.md){' (symptom)' if rule.symptom else ''}: {first}")
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """File name → text."""
    return {"README.md": index()} | {f"{rule.name}.md": text_of(rule) for rule in all_rules()}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.md"):
        old.unlink()
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")
