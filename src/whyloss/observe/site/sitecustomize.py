"""Python imports this at start-up where `whyloss run` put its folder first on PYTHONPATH.

It waits for the script's own `import torch`, attaches after it, and hands over to the sitecustomize that it hides.
It does nothing else: no argument, path or module of the script changes.
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__))


def _note(what: str) -> None:
    """Tells the parent how far this process got; it has nothing else to tell 'no torch' from 'no Python'."""
    beacon = os.environ.get("WHYLOSS_BEACON")
    if beacon:
        try:
            with open(beacon, "a", encoding="utf-8") as file:
                file.write(what + "\n")
        except OSError:
            pass


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as usual, with a loader that attaches when torch has been executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                _attach()

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _attach() -> None:
    try:
        from whyloss.observe.attach import attach_from_environment

        attach_from_environment()
        _note("torch")
    except Exception as error:  # noqa: BLE001 - the script must run, whatever is wrong with us
        _note(f"refused {type(error).__name__}: {error}")
        print(f"whyloss: not observing ({error}); the script goes on", file=sys.stderr)  # noqa: T201


def _hand_over() -> None:
    """Runs the sitecustomize that stands behind ours on sys.path, if there is one."""
    rest = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if os.environ.get("WHYLOSS_FOLDER"):
    _note("python")
    sys.meta_path.insert(0, _AfterTorch())
_hand_over()
