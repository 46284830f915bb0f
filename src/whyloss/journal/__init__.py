"""The folder of a run: append-only, readable after kill -9 at any moment. docs/journal.md describes the format."""

from whyloss.journal.folder import claim, default_folder
from whyloss.journal.reader import read_run
from whyloss.journal.writer import Journal, add_end

__all__ = ["Journal", "add_end", "claim", "default_folder", "read_run"]
