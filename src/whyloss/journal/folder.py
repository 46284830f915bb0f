"""Choosing and claiming the folder of a run, never one that holds another run."""

import os
import time
from pathlib import Path

from whyloss.core.errors import Misuse


def default_folder(script: str, base: Path | None = None) -> Path:
    """.whyloss/<time>-<script>/ below `base` (the working directory): a folder that does not exist yet."""
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(script).stem) or "run"
    root = (base or Path.cwd()) / ".whyloss"
    return free(root / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}")


def free(folder: Path) -> Path:
    """`folder`, or the first of folder-2, folder-3, … that does not exist."""
    n, candidate = 1, folder
    while candidate.exists():
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return candidate


def events_name(rank: int) -> str:
    return f"events-r{rank}.jsonl"


def claim(folder: Path, rank: int = 0) -> Path:
    """Makes the folder and its events file for this process; where another process has it, folder-2 and so on.

    Misuse where nothing can be written there.
    """
    n, candidate = 1, folder
    while True:
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            os.close(os.open(candidate / events_name(rank), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            return candidate
        except FileExistsError:
            n += 1
            candidate = folder.with_name(f"{folder.name}-{n}")
        except OSError as error:
            msg = f"can't write in {candidate}: {error.strerror}. Choose another folder with --out DIR"
            raise Misuse(msg) from error


def siblings(folder: Path) -> list[Path]:
    """`folder` and the folder-2, folder-3, … that later processes of the same command claimed, as far as they exist."""
    found, n = [], 1
    candidate = folder
    while candidate.is_dir() and any(candidate.glob("events-r*.jsonl")):
        found.append(candidate)
        n += 1
        candidate = folder.with_name(f"{folder.name}-{n}")
    return found
