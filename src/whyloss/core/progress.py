"""Did the training learn? The one question that keeps a healthy run, however odd it looks, free of alarms."""

from whyloss.core.run import Trace
from whyloss.core.series import Fall, fall

# A drop counts when it is beyond five standard errors of what the noise alone does, and is at least this share of
# where the loss started (a loss near zero or negative is measured against the size of its own range instead).
SHARE = 0.1
ERRORS = 5.0


def learned(trace: Trace) -> bool | None:
    """True when the loss fell beyond noise and by a tenth, and stayed down; None where that can't be said
    (no loss, fewer than 20 updates, or a loss that turned non-finite)."""
    loss = trace.loss
    if loss is None or len(loss) < 20 or len(loss.finite) < len(loss):
        return None
    result = fall(loss)
    return None if result is None else fell(result)


def fell(f: Fall, share: float = SHARE) -> bool:
    return f.drop > ERRORS * f.error and f.drop >= share * max(abs(f.start), abs(f.end) * 0.1)
