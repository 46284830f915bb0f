"""When a training looks suspicious enough to record a step: on the figures as they come, one update after the other."""

import math
from collections import deque

import numpy as np

HISTORY = 50  # updates that a figure is held against
JUMP = 10.0  # robust standard deviations above the median
TIMES = 3.0  # and times the median: a smooth loss has next to no deviation
PLATEAU = 100  # updates in each half of a plateau
FLAT = 0.1  # of the spread of the second half: the medians of both halves differ by less
FALLEN = 1.0  # and by more than this before another plateau can begin
EVERY = 10  # updates between two looks for a plateau
PAUSE = 200  # updates between two suspicions
MOST = 4  # suspicions of one run


class Suspicion:
    """`look` gives the reason at the update at which one arises: a jump of the loss or of the gradient norm, or a loss
    that has stopped falling. Each trace is held against its own past."""

    def __init__(self) -> None:
        self._traces: dict[int, _Past] = {}
        self._since, self._left = 0, MOST

    def look(self, trace: int, loss: float, gradient: float) -> str:
        """Why to record the next step; "" for no reason."""
        self._since += 1
        reason = self._traces.setdefault(trace, _Past()).look(loss, gradient)
        if not reason or not self._left or (self._left < MOST and self._since < PAUSE):
            return ""
        self._left, self._since = self._left - 1, 0
        return reason


class _Past:
    """The figures of one optimizer. Those that are not finite are passed over: they are caught elsewhere."""

    def __init__(self) -> None:
        self._losses, self._gradients = deque[float](maxlen=2 * PLATEAU), deque[float](maxlen=HISTORY)
        self._looks, self._flat = 0, False

    def look(self, loss: float, gradient: float) -> str:
        reason = ""
        for what, value, past in (("loss", loss, self._losses), ("gradient norm", gradient, self._gradients)):
            if math.isfinite(value):
                reason = reason or (f"the {what} jumped to {value:.4g}" if _jumps(value, past) else "")
                past.append(value)
        self._looks += 1
        return reason or (self._plateau() if self._looks % EVERY == 0 else "")

    def _plateau(self) -> str:
        """The moment at which a loss stops falling; the next one comes after it has fallen again."""
        past = np.array(self._losses)
        if len(past) < 2 * PLATEAU:
            return ""
        before, after = past[:PLATEAU], past[PLATEAU:]
        spread = float(np.subtract(*np.percentile(after, [75, 25])))
        fell = float(np.median(before)) - float(np.median(after))
        if self._flat or abs(fell) > FLAT * spread:
            self._flat = self._flat and fell <= FALLEN * spread
            return ""
        self._flat = True
        return "the loss stopped falling"


def _jumps(value: float, past: "deque[float]") -> bool:
    if len(past) < HISTORY or value <= TIMES * min(map(abs, past)):  # the cheap test first
        return False
    recent = np.array(past)[-HISTORY:]
    middle = float(np.median(recent))
    deviation = 1.4826 * float(np.median(np.abs(recent - middle)))
    return value > middle + JUMP * deviation and value > TIMES * abs(middle)
