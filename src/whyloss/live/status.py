"""One line about the running training, kept on the last row of a terminal; nothing where stderr is no terminal."""

import contextlib
import math
import os
import sys
from typing import Self

from whyloss.core.run import Run
from whyloss.report import clean

FEWEST_ROWS = 4  # of a terminal that gives one of them away


class StatusLine:
    """Reserves the last row while it is used as a context manager; the script's own output scrolls above it."""

    def __init__(self) -> None:
        self.active = sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._rows:
            self._write(f"\x1b7\x1b[r\x1b[{self._rows};1H\x1b[K\x1b8")

    def show(self, run: Run, findings: int) -> None:
        if not self.active:
            return
        columns, rows = _size()
        if rows < FEWEST_ROWS:
            return
        if rows != self._rows:
            self._rows = rows
            # a newline first, so that the cursor is not on the row that is taken away
            self._write(f"\n\x1b7\x1b[1;{rows - 1}r\x1b8\x1b[1A")
        text = describe(run, findings)[: columns - 1]
        self._write(f"\x1b7\x1b[{rows};1H\x1b[K\x1b[2m{text}\x1b[22m\x1b8")

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # the terminal is gone: the training is not
            sys.stderr.write(text)
            sys.stderr.flush()


def _size() -> tuple[int, int]:
    """Columns and rows of the terminal behind stderr, which need not be that of stdout."""
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return 0, 0
    return size.columns, size.lines


def describe(run: Run, findings: int) -> str:
    """step, loss, steps a second, rate of learning, findings so far."""
    if not run.traces:
        return "whyloss  waiting for the first optimizer step"
    trace = run.traces[-1]
    parts = [f"whyloss  step {trace.updates}"]
    if trace.loss is not None:
        parts.append(f"loss {trace.loss.last:.4g}")
    clock = trace.signal("seconds")
    if clock is not None and len(clock) > 20:
        recent = clock.values[-20:]
        pace = (clock.steps[-1] - clock.steps[-20]) / max(recent[-1] - recent[0], 1e-9)
        parts.append(f"{pace:.3g} steps/s" if math.isfinite(pace) else "")
    rate = trace.signal("lr[0]")
    if rate is not None:
        parts.append(f"lr {rate.last:.3g}")
    parts.append(f"{findings} finding{'s' if findings != 1 else ''}")
    return clean("  ".join(p for p in parts if p))
