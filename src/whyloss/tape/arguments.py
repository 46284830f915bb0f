"""Arguments of a call as JSON and back: plain numbers and text, containers of them, and torch's own constants.

What JSON has no word for is an object with one key that says what it is: {"ref": 3}, {"tuple": [1, 2]},
{"dtype": "float32"}, {"float": "nan"}.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from whyloss.core.errors import NothingToJudge, WhylossError
from whyloss.tape.generators import GENERATOR, GivenGenerator
from whyloss.tape.tape import Ref

DEEPEST = 64  # containers in one another
MOST_INTEGER = 2**63
DTYPES = {str(d).removeprefix("torch."): d for d in vars(torch).values() if isinstance(d, torch.dtype)}
LAYOUTS = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.layout)}
FORMATS = {str(v).removeprefix("torch."): v for v in vars(torch).values() if isinstance(v, torch.memory_format)}
_DEVICE = re.compile(r"(cpu|cuda|mps|xpu)(:\d{1,3})?")


class Unwritable(WhylossError):
    """The step can't be kept as a bundle; the text says which part of it, and why."""


def unchanged(device: torch.device) -> torch.device:
    return device


# -- writing


def encode(value: Any, tensor: Callable[[torch.Tensor], str] | None = None) -> Any:
    """Unwritable for what can't be said in JSON. `tensor` keeps a tensor and gives the key under which it is kept."""
    if isinstance(value, torch.Tensor) and tensor is not None:
        return {"tensor": tensor(value)}
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    if isinstance(value, list):
        return [encode(item, tensor) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [encode(item, tensor) for item in value]}
    if isinstance(value, slice):
        return {"slice": [encode(part, tensor) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, Mapping):
        return {"dict": {_key(key): encode(item, tensor) for key, item in value.items()}}
    return encode(_number_of(value), tensor)


def _key(key: Any) -> str:
    if isinstance(key, str):
        return key
    msg = f"a dict with the key {key!r}, which is no text"
    raise Unwritable(msg)


def _number_of(value: Any) -> Any:
    """A NumPy scalar as Python's own number."""
    if type(value).__module__ == "numpy" and getattr(value, "shape", None) == () and hasattr(value, "item"):
        number = value.item()
        if isinstance(number, bool | int | float | complex):
            return number
    msg = f"a {type(value).__module__}.{type(value).__qualname__} among its arguments"
    raise Unwritable(msg.replace("builtins.", ""))


def _integer(value: int) -> int:
    if not -MOST_INTEGER <= value < MOST_INTEGER:
        msg = f"the number {value}, which has more than 64 bits"
        raise Unwritable(msg)
    return int(value)


def _text(value: str) -> Any:
    """The name of a device becomes a device: every call takes either."""
    return {"device": str(value)} if _DEVICE.fullmatch(value) else str(value)


def _float(value: float) -> Any:
    return float(value) if math.isfinite(value) else {"float": str(float(value))}


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


_WRITERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (type(None), lambda value: None),
    (bool, bool),
    (int, _integer),
    (float, _float),
    (str, _text),
    (complex, lambda value: {"complex": [_float(value.real), _float(value.imag)]}),
    (Ref, lambda value: {"ref": value.index}),
    (type(Ellipsis), lambda value: {"ellipsis": None}),
    (GivenGenerator, lambda value: {"generator": None}),
    (torch.dtype, lambda value: {"dtype": _name(value)}),
    (torch.device, lambda value: {"device": str(value)}),
    (torch.layout, lambda value: {"layout": _name(value)}),
    (torch.memory_format, lambda value: {"memory_format": _name(value)}),
)


# -- reading


@dataclass(frozen=True)
class Reader:
    """Turns JSON back into arguments; NothingToJudge for what none of ours would have written.

    `device` gives the device to use in place of a recorded one, `tensor` the tensor kept under a key.
    """

    device: Callable[[torch.device], torch.device] = unchanged
    tensor: Callable[[str], torch.Tensor] | None = None

    def decode(self, tree: Any, depth: int = 0) -> Any:
        if depth > DEEPEST:
            raise refusal(f"arguments in more than {DEEPEST} containers")
        if isinstance(tree, list):
            return [self.decode(item, depth + 1) for item in tree]
        if isinstance(tree, dict):
            return self._tagged(tree, depth + 1)
        if isinstance(tree, int) and not -MOST_INTEGER <= tree < MOST_INTEGER:
            raise refusal(f"the number {tree}, which has more than 64 bits")
        return tree

    def _tagged(self, tree: dict[str, Any], depth: int) -> Any:
        if len(tree) != 1:
            raise refusal(f"an argument with {len(tree)} kinds, not one")
        ((tag, given),) = tree.items()
        if tag in _CONTAINERS:
            return _CONTAINERS[tag](self, given, depth)
        if tag in _CONSTANTS:
            return _named(given, tag, _CONSTANTS[tag])
        if tag == "device":
            return self.device(device_of(given))
        if tag == "tensor" and self.tensor is not None and isinstance(given, str):
            return self.tensor(given)
        if tag == "ref":
            return Ref(number_of(given, "a tensor's number"))
        raise refusal(f"an argument of an unknown kind, {tag!r}")

    def _tuple(self, given: Any, depth: int) -> tuple[Any, ...]:
        return tuple(self._list(given, "a tuple", depth))

    def _dict(self, given: Any, depth: int) -> dict[str, Any]:
        if not isinstance(given, dict):
            raise refusal("a dict that is none")
        return {key: self.decode(item, depth) for key, item in given.items()}

    def _slice(self, given: Any, depth: int) -> slice:
        parts = self._list(given, "a slice", depth)
        if len(parts) != 3 or not all(part is None or type(part) in (int, Ref) for part in parts):
            raise refusal("a slice that is not made of three whole numbers")
        return slice(*parts)

    def _complex(self, given: Any, depth: int) -> complex:
        parts = self._list(given, "a complex number", depth)
        if len(parts) != 2 or not all(type(part) in (int, float) for part in parts):
            raise refusal("a complex number that is not made of two numbers")
        return complex(*parts)

    def _list(self, given: Any, what: str, depth: int) -> list[Any]:
        if not isinstance(given, list):
            raise refusal(f"{what} that is none")
        return [self.decode(item, depth) for item in given]


_CONTAINERS: dict[str, Callable[[Reader, Any, int], Any]] = {
    "tuple": Reader._tuple,
    "dict": Reader._dict,
    "slice": Reader._slice,
    "complex": Reader._complex,
}
_CONSTANTS: dict[str, Mapping[Any, Any]] = {
    "float": {"nan": math.nan, "inf": math.inf, "-inf": -math.inf},
    "ellipsis": {None: Ellipsis},
    "generator": {None: GENERATOR},
    "dtype": DTYPES,
    "layout": LAYOUTS,
    "memory_format": FORMATS,
}


def refusal(what: str) -> NothingToJudge:
    """Of a bundle that holds something that it can't."""
    return NothingToJudge(f"it holds {what}")


def _named(given: Any, kind: str, known: Mapping[Any, Any]) -> Any:
    if not isinstance(given, str | None) or given not in known:
        raise refusal(f"an unknown {kind}, {str(given)[:60]!r}")
    return known[given]


def dtype_of(name: Any) -> torch.dtype:
    found: torch.dtype = _named(name, "dtype", DTYPES)
    return found


def device_of(name: Any) -> torch.device:
    if not isinstance(name, str) or not _DEVICE.fullmatch(name):
        raise refusal(f"an unknown device, {str(name)[:60]!r}")
    return torch.device(name)


def number_of(given: Any, what: str) -> int:
    if type(given) is not int or not 0 <= given < MOST_INTEGER:
        raise refusal(f"{str(given)[:60]!r} as {what}")
    return given
