"""The graph of a recorded step on disk: one JSON file, written whole."""

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from whyloss.core.errors import NothingToJudge
from whyloss.core.plain import speakable
from whyloss.core.step_graph import Op, StepGraph

NUMBERS = ("nan", "inf", "-inf")  # as strings: JSON has no word for them


def graph_name(trace: int, step: int, rank: int) -> str:
    return f"graph-o{trace}-step{step}-r{rank}.json"


def to_bytes(graph: StepGraph) -> bytes:
    return msgspec.json.encode(speakable(msgspec.to_builtins(graph)))


def read_graph(folder: Path, trace: int, step: int, rank: int) -> StepGraph:
    """NothingToJudge, in words that name the file, where it is missing or damaged."""
    path = folder / graph_name(trace, step, rank)
    begin = f"the recorded step {step} is left out: {path.name}"
    try:
        state = path.stat()
        graph = _read(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        msg = f"{begin} can't be read ({error.strerror})"
        raise NothingToJudge(msg) from error
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        msg = f"{begin} is damaged ({error})"
        raise NothingToJudge(msg) from error
    if (graph.trace, graph.step) != (trace, step):
        msg = f"{begin} holds step {graph.step} of optimizer {graph.trace}"
        raise NothingToJudge(msg)
    return graph


@lru_cache(maxsize=128)
def _read(path: Path, changed: int, size: int) -> StepGraph:
    """Once for each state of the file: while a training runs its journal is read again and again."""
    return _from_bytes(path.read_bytes())


def _from_bytes(data: bytes) -> StepGraph:
    found = msgspec.json.decode(data, type=StepGraph, strict=False)  # not strict: "nan" and "inf" are floats
    return replace(found, ops=tuple(map(_op, found.ops)), aside=tuple(map(_op, found.aside)))


def _op(op: Op) -> Op:
    return replace(op, arguments={name: _numbers(given) for name, given in op.arguments.items()})


def _numbers(given: Any) -> Any:
    """Arguments have no types of their own, so that their numbers are put back here."""
    if isinstance(given, dict):
        return {name: _numbers(item) for name, item in given.items()}
    if isinstance(given, list):
        return [_numbers(item) for item in given]
    return float(given) if given in NUMBERS else given
