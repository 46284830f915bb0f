"""Choosing and claiming the folder of a run, never one that holds another run."""

import contextlib
import os
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from whyloss.core.errors import Misuse


def default_folder(script: str, base: Path | None = None) -> Path:
    """.whyloss/<time>-<script>/ below `base` (the working directory): a folder that does not exist yet."""
    stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(script).stem)[:80] or "run"
    root = (base or Path.cwd()) / ".whyloss"
    return free(root / f"{time.strftime('%Y%m%d-%H%M%S')}-{stem}")


def numbered(folder: Path) -> Iterator[Path]:
    """`folder`, folder-2, folder-3, … without end."""
    yield folder
    yield from (folder.with_name(f"{folder.name}-{n}") for n in count(2))


def free(folder: Path) -> Path:
    """`folder`, or the first of folder-2, folder-3, … that does not exist."""
    return next(candidate for candidate in numbered(folder) if not candidate.exists())


def make(folder: Path) -> Path:
    """Makes `folder`, or the first of folder-2, … that nobody else has: two processes never get the same one."""
    for candidate in numbered(folder):
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(candidate, error) from error
        return candidate
    raise AssertionError


def events_name(rank: int) -> str:
    return f"events-r{rank}.jsonl"


def claim(folder: Path, rank: int = 0) -> Path:
    """Makes the folder and its events file for this process; where another process has it, folder-2 and so on.

    Misuse where nothing can be written there.
    """
    for candidate in numbered(folder):
        try:
            candidate.mkdir(parents=True, exist_ok=True)
            os.close(os.open(candidate / events_name(rank), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
        except FileExistsError:
            continue
        except OSError as error:
            raise _unwritable(candidate, error) from error
        return candidate
    raise AssertionError


def ranks(folder: Path) -> list[int]:
    """The ranks of the processes that wrote in a folder, lowest first."""
    names = [p.name.removeprefix("events-r").removesuffix(".jsonl") for p in folder.glob("events-r*.jsonl")]
    return sorted(int(n) for n in names if n.isdecimal() and n.isascii())


def replace_file(path: Path, data: bytes) -> None:
    """Whole or not at all: who reads finds what was there before, or all of `data`. Raises OSError."""
    temporary = path.with_suffix(path.suffix + ".new")
    try:
        temporary.write_bytes(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def siblings(folder: Path, older: frozenset[Path] = frozenset()) -> list[Path]:
    """`folder` and the folder-2, folder-3, … that further processes of the same command claimed; none of `older`."""
    found: list[Path] = []
    for candidate in numbered(folder):
        if not candidate.is_dir():
            return found
        if candidate not in older and ranks(candidate):
            found.append(candidate)
    raise AssertionError


def taken(folder: Path) -> frozenset[Path]:
    """The folders of that name and number that exist already."""
    if not folder.parent.is_dir():
        return frozenset()
    return frozenset(p for p in folder.parent.iterdir() if p.name.startswith(f"{folder.name}-"))


def _unwritable(folder: Path, error: OSError) -> Misuse:
    return Misuse(f"can't write in {folder}: {error.strerror}. Choose another folder with --out DIR")
