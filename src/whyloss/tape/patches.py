"""What is put in torch's place while a step is recorded, and taken out again."""

from collections.abc import Callable
from typing import Any


class Patches:
    """Attributes that were set, and what undoes it, last first."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        there = vars(owner)
        own, before = name in there, there.get(name)
        setattr(owner, name, value)

        def undo() -> None:
            if vars(owner).get(name) is not value:
                return  # somebody patched it once more: ours passes the call on
            if own:
                setattr(owner, name, before)
            else:
                delattr(owner, name)

        self._undo.append(undo)

    def undo(self) -> None:
        while self._undo:
            self._undo.pop()()
