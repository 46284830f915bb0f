"""Counts the graphs of losses that outlive their backward pass, because the script keeps the loss and not its value."""

import linecache
import re
import weakref
from typing import Any

import torch

from whyloss.core.finding import Place
from whyloss.core.kept import Kept
from whyloss.core.lines import place_at, user_line
from whyloss.observe.graph import size

MOST = 4096  # losses that are followed
DEEP = 3  # nodes from the loss on: what is kept may lie below a division by the number of micro-batches
FIRST = 64  # losses before the first count
NEAR = 40  # lines around backward() that are searched
LOSS = r"\w*loss\w*(\s*[*/]\s*[\w.()]+)*\s*"
KEEPS = re.compile(
    rf"[\w\]]\s*\+=\s*{LOSS}(#.*)?$|\b(?P<sum>\w+)\s*=\s*(?P=sum)\s*\+\s*{LOSS}(#.*)?$|append\(\s*{LOSS}\)",
    re.IGNORECASE,
)


class _Mark:
    """Lives as long as the node of autograd that it is attached to."""


class KeptGraphs:
    def __init__(self) -> None:
        self._marks: list[tuple[weakref.ref[_Mark], ...]] = []
        self._line: tuple[str | None, int | None] = (None, None)

    def note(self, losses: list[Any]) -> bool:
        """A loss that backward() is called of. True where it is time to count: at 64, 128, 256, …"""
        if len(self._marks) >= MOST:
            return False
        node: Any = next((t.grad_fn for t in losses if isinstance(t, torch.Tensor)), None)
        found: list[weakref.ref[_Mark]] = []
        while node is not None and len(found) < DEEP:
            mark = _Mark()
            node.metadata["whyloss"] = mark
            found.append(weakref.ref(mark))
            following = [n for n, _ in node.next_functions if n is not None]
            node = following[0] if len(following) == 1 else None
        self._marks.append(tuple(found))
        if not any(self._line):
            self._line = user_line()
        made = len(self._marks)
        return made >= FIRST and made & (made - 1) == 0

    def count(self, losses: list[Any], step: int) -> Kept:
        """The last loss is not counted: its variable lives on until the next one."""
        alive = [any(mark() is not None for mark in marks) for marks in self._marks[:-1]]
        place = self._place() if sum(alive) >= FIRST // 2 else Place()
        early = sum(alive[: len(self._marks) // 2])
        return Kept(made=len(self._marks), alive=sum(alive), early=early, nodes=size(losses), step=step, place=place)

    def _place(self) -> Place:
        file, line = self._line
        if file is None or line is None:
            return Place()
        near = sorted(range(max(line - NEAR, 1), line + NEAR), key=lambda n: abs(n - line))
        return next((place_at(file, n) for n in near if KEEPS.search(linecache.getline(file, n).rstrip())), Place())
