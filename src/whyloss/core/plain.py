"""Values as JSON can hold them."""

import math
from typing import Any


def speakable(value: Any) -> Any:
    """The same value with what JSON has no word for put as text: "nan", "inf", "-inf", and a ? for half a surrogate."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {speakable(k): speakable(v) for k, v in value.items()}
    return [speakable(v) for v in value] if isinstance(value, list | tuple) else value
