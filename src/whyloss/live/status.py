"""One line about the running training, kept on the last row of a terminal; nothing at all where stderr is no terminal."""

import math
import os
import shutil
import sys
from typing import Self

from whyloss.core.run import Run


class StatusLine:
    """Reserves the last row while it is used as a context manager; the script's own output scrolls above it."""

    def __init__(self) -> None:
        self.active = sys.stderr.isatty() and os.environ.get("TERM") not in (None, "dumb")
        self._rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.active and self._rows:
            self._write(f"\x1b7\x1b[1;{self._rows}r\x1b[{self._rows};1H\x1b[K\x1b8")

    def show(self, run: Run, findings: int) -> None:
        if not self.active:
            return
        size = shutil.get_terminal_size()
        if size.lines != self._rows:
            self._rows = size.lines
            # a newline first, so that the cursor is not on the row that is taken away
            self._write(f"\n\x1b7\x1b[1;{size.lines - 1}r\x1b8\x1b[1A")
        text = describe(run, findings)[: size.columns - 1]
        self._write(f"\x1b7\x1b[{size.lines};1H\x1b[K\x1b[2m{text}\x1b[22m\x1b8")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


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
    return "  ".join(p for p in parts if p)
