"""When a training looks suspicious enough to record a step: on the figures as they come, one update after the other."""

import math
from collections import deque

import numpy as np

HISTORY = 50  # updates that a figure is held against
JUMP = 10.0  # robust standard deviations above the median
TIMES = 3.0  # and times the median: a smooth loss has next to no deviation
PLATEAU = 100  # updates in each half of a plateau
EVERY = 10  # updates between two looks for a plateau
PAUSE = 200  # updates between two suspicions
MOST = 4  # suspicions of one run


class Suspicion:
    """`look` gives the reason at the update at which one arises: a jump of the loss or of the gradient norm, or a loss
    that has stopped falling. Figures that are not finite are passed over: they are caught elsewhere."""

    def __init__(self) -> None:
        self._past = {"loss": deque[float](maxlen=2 * PLATEAU), "gradient norm": deque[float](maxlen=HISTORY)}
        self._looks, self._since, self._left, self._flat = 0, 0, MOST, False

    def look(self, loss: float, gradient: float) -> str:
        """Why to record the next step; "" for no reason."""
        self._since += 1
        reason = ""
        for what, value in (("loss", loss), ("gradient norm", gradient)):
            past = self._past[what]
            if not math.isfinite(value):
                continue
            if _jumps(value, past):
                reason = reason or f"the {what} jumped to {value:.4g}"
            past.append(value)
        self._looks += 1
        return self._tell(reason or (self._plateau() if self._looks % EVERY == 0 else ""))

    def _plateau(self) -> str:
        """The moment at which a loss that had fallen no longer does."""
        past = np.array(self._past["loss"])
        if len(past) < 2 * PLATEAU:
            return ""
        before, after = past[:PLATEAU], past[PLATEAU:]
        spread = float(np.subtract(*np.percentile(after, [75, 25])))
        flat = abs(float(np.median(before)) - float(np.median(after))) <= 0.1 * spread
        began, self._flat = flat and not self._flat, flat
        return "the loss stopped falling" if began else ""

    def _tell(self, reason: str) -> str:
        if not reason or not self._left or (self._left < MOST and self._since < PAUSE):
            return ""
        self._left, self._since = self._left - 1, 0
        return reason


def _jumps(value: float, past: "deque[float]") -> bool:
    recent = list(past)[-HISTORY:]
    if len(recent) < HISTORY or value <= TIMES * min(map(abs, recent)):  # the cheap test first
        return False
    middle = float(np.median(recent))
    deviation = 1.4826 * float(np.median(np.abs(np.array(recent) - middle)))
    return value > middle + JUMP * deviation and value > TIMES * abs(middle)
