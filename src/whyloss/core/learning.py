"""Did the training learn anything from its inputs?"""

import numpy as np

from whyloss.core.levels import baselines, own_loss
from whyloss.core.progress import learned
from whyloss.core.run import Trace
from whyloss.core.series import fall

POOR = 0.5  # of the best constant prediction's loss
BELOW = 0.02  # of the best constant prediction's loss: batches scatter around it by that much


def learned_from_input(trace: Trace) -> bool | None:
    """`learned`; but False where the loss fell no further than that of the best constant prediction, which the last
    bias reaches alone, and None where it did not fall and takes both signs, as a policy gradient's does."""
    result, loss = learned(trace), trace.loss
    if loss is not None and np.any(loss.low < 0) and np.any(loss.high > 0):
        return result or None
    known, own = baselines(trace), own_loss(trace)
    reached = fall(own) if own is not None else None
    if not result or not known or reached is None:
        return result
    return reached.end < (1 - BELOW) * known[-1].value


def ends_poorly(trace: Trace) -> bool:
    """Whether the run shows that it suffers: it has not learned, or ends above half of the loss of the best constant
    prediction, or, where no baseline is known, above half of its first loss. False for fewer than 20 updates."""
    if trace.updates < 20:
        return False
    own, known = own_loss(trace), baselines(trace)
    result = fall(own) if own is not None and known else None
    if result is not None:
        return result.end > POOR * known[-1].value or learned_from_input(trace) is False
    loss = trace.loss
    result = fall(loss) if loss is not None else None
    return result is None or result.start <= 0 or result.end > POOR * result.start
