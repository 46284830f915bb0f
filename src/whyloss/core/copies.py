"""A second model of the class that is trained, which no optimizer holds: an average, a teacher, a target network."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Copy:
    """What several looks at one copy saw. Buffers here are the floating-point ones, such as running statistics."""

    trace: int  # whose model it is a copy of
    model: str  # its class
    first: int  # update at which it was first seen
    last: int
    looks: int = 1
    moved: int = 0  # looks at which its parameters were not those of the look before
    buffers: int = 0
    buffers_moved: bool = False  # ever, in the copy
    live_buffers_moved: bool = False  # in the model that is trained
    distance: float | None = None  # ‖copy − model‖ / ‖model‖ over the parameters, at the last look
    evaluated: int = 0  # its forward passes in evaluation mode
