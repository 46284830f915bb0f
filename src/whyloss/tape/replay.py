"""Runs a tape again, with its own leaves or with others."""

import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from whyloss.tape.generators import GENERATOR
from whyloss.tape.tape import BACKWARD, Context, Drawn, Leaf, Op, Ref, Tape, mapped

KEEP_STATISTICS = ("batch_norm", "instance_norm")
_playing = 0


def playing() -> bool:
    """Whether a tape is being played: what happens then is no part of the user's training."""
    return _playing > 0


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a replay gave. `gradients`: number of a leaf that wants one → its gradient, or None where none arrived.

    `values` and `value_gradients` hold what was asked for by `keep`.
    """

    losses: tuple[torch.Tensor, ...]
    gradients: Mapping[int, torch.Tensor | None]
    values: Mapping[int, torch.Tensor] = field(default_factory=dict)
    value_gradients: Mapping[int, torch.Tensor | None] = field(default_factory=dict)


def replay(
    tape: Tape,
    leaves: Mapping[int, torch.Tensor] | None = None,
    *,
    backward: bool = True,
    keep: Iterable[int] = (),
    watch: Callable[[int, Op], None] | None = None,
) -> Played:
    """Runs the tape. `leaves`: number → the tensor to use in place of the recorded one, as it is, graph and gradient
    included; the others are copies. `keep`: numbers of values that are wanted with their gradients. `watch(i, op)` is
    called before each op, backward calls included.

    Touches nothing of the user's: generators, autocast and modes of torch are as before when it returns. What an op
    raises passes through.
    """
    with quiet(tape):
        player = Player(tape, keep)
        env = player.bind(leaves or {})
        player.run(env, backward=backward, watch=watch)
        return player.played(env)


class Player:
    """A tape made ready to be run many times. Use it inside `quiet(tape)`."""

    def __init__(self, tape: Tape, keep: Iterable[int] = ()) -> None:
        self.tape, self.keep = tape, frozenset(keep)
        changed = {n for op in tape.ops for n in op.changed}
        self._copied = changed | _views_changed(tape, changed) | _silently_changed(tape)
        self._last = _last_uses(tape, self.keep | set(tape.losses) | set(tape.leaves))
        self._autocast = Autocast(tape)
        self._leaves: dict[int, torch.Tensor] = {}

    def bind(self, given: Mapping[int, torch.Tensor]) -> dict[int, Any]:
        """The leaves as a run begins with them. Recorded ones are shared where no op changes them."""
        env: dict[int, Any] = {}
        for number, leaf in self.tape.leaves.items():
            if number in given:
                env[number] = given[number].clone() if self._must_copy(leaf, given[number]) else given[number]
            else:
                env[number] = self._fresh(leaf)
        self._leaves = {n: env[n] for n, leaf in self.tape.leaves.items() if env[n].requires_grad}
        return env

    def _must_copy(self, leaf: Leaf, t: torch.Tensor) -> bool:
        return leaf.index in self._copied and not t.requires_grad

    def _fresh(self, leaf: Leaf) -> torch.Tensor:
        value = leaf.value.clone() if leaf.index in self._copied else leaf.value.detach()
        value.requires_grad_(leaf.requires_grad)
        if leaf.before is not None:
            value.grad = leaf.before.clone()
        return value

    def run(
        self,
        env: dict[int, Any],
        *,
        backward: bool = True,
        watch: Callable[[int, Op], None] | None = None,
        then: Callable[[int, Op], None] | None = None,
    ) -> None:
        """Runs every op on `env`, which holds the leaves and in the end the losses and what was to be kept.

        `watch` is called before each op, `then` after it, while its results are still in `env`.
        """
        self._autocast.begin()
        try:
            for i, op in enumerate(self.tape.ops):
                if op.name == BACKWARD and not backward:
                    continue
                if watch is not None:
                    watch(i, op)
                self._step(op, env)
                if then is not None:
                    then(i, op)
                for number in self._last.get(i, ()):
                    env.pop(number, None)
        finally:
            self._autocast.end()

    def _step(self, op: Op, env: dict[int, Any]) -> None:
        args, kwargs = _bound(op.args, env), _bound(op.kwargs, env)
        if op.drawn:
            kwargs = restore(op.drawn, kwargs)
        self._autocast.set(op.context)
        if op.context.grad != torch.is_grad_enabled():
            torch.set_grad_enabled(op.context.grad)
        out = op.call(*args, **kwargs)
        if op.out is not None:
            _store(op.out, out, env)
            for number in self.keep.intersection(op.outputs):
                if env[number].requires_grad:
                    env[number].retain_grad()

    def played(self, env: Mapping[int, Any]) -> Played:
        kept = {n: env[n] for n in self.keep if n in env}
        return Played(
            losses=tuple(env[n].detach() for n in self.tape.losses),
            gradients={n: t.grad for n, t in self._leaves.items()},
            values={n: t.detach() for n, t in kept.items()},
            value_gradients={
                n: t.grad if t.requires_grad and (t.is_leaf or t.retains_grad) else None for n, t in kept.items()
            },
        )


def _bound(tree: Any, env: Mapping[int, Any]) -> Any:
    """The arguments with tensors for Refs; flat tuples and dicts, the common case, without recursion."""
    if type(tree) is tuple:
        return tuple(env[a.index] if type(a) is Ref else _deep(a, env) for a in tree)
    return {k: env[a.index] if type(a) is Ref else _deep(a, env) for k, a in tree.items()}


def _deep(value: Any, env: Mapping[int, Any]) -> Any:
    if isinstance(value, tuple | list | dict | slice):
        return mapped(value, lambda r: env[r.index], Ref)
    return value


def _store(where: Any, out: Any, env: dict[int, Any]) -> None:
    if type(where) is Ref:
        env[where.index] = out
    elif isinstance(where, dict):
        for key, item in where.items():
            _store(item, out[key], env)
    elif isinstance(where, tuple | list):
        for item, value in zip(where, out, strict=True):
            _store(item, value, env)


def _last_uses(tape: Tape, wanted: Iterable[int]) -> dict[int, list[int]]:
    """Place of an op → the values that nobody needs after it."""
    last: dict[int, int] = {}
    for i, op in enumerate(tape.ops):
        for n in (*op.inputs, *op.outputs):
            last[n] = i
    freed: dict[int, list[int]] = {}
    for n in last.keys() - set(wanted):
        freed.setdefault(last[n], []).append(n)
    return freed


def _views_changed(tape: Tape, changed: Iterable[int]) -> set[int]:
    """Leaves of which a view is changed: every leaf from which a changed value may have its memory."""
    made = {n: op for op in tape.ops for n in op.outputs if n not in op.inputs}  # contiguous() may give it itself
    found: set[int] = set()
    stack = list(changed)
    while stack:
        n = stack.pop()
        if n in found:
            continue
        found.add(n)
        if n in made:
            stack += [i for i in made[n].inputs if _may_share(tape, n, i)]
    return found & tape.leaves.keys()


def _silently_changed(tape: Tape) -> set[int]:
    """Running statistics: their kernels write them without a new version, so that recording does not notice."""
    given = {n for op in tape.ops if op.name.endswith(KEEP_STATISTICS) for n in op.inputs}
    return {n for n in given & tape.leaves.keys() if not tape.leaves[n].requires_grad}


def _may_share(tape: Tape, a: int, b: int) -> bool:
    return tape.values[a].dtype == tape.values[b].dtype and tape.values[a].device == tape.values[b].device


# -- what surrounds a replay


@contextmanager
def undisturbed(devices: Iterable[str] = ()) -> Iterator[None]:
    """Within it something is played; afterwards generators, gradient mode and default dtype are as before. `devices`:
    those of CUDA whose generators may be drawn from."""
    global _playing
    cpu, cuda = torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in devices}
    python, numpy = random.getstate(), _numpy_state()
    grad, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    _playing += 1
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the training has had them already
            yield
    finally:
        _playing -= 1
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(grad)
        torch.set_rng_state(cpu)
        for device, state in cuda.items():
            torch.cuda.set_rng_state(state, device)
        random.setstate(python)
        if numpy is not None:
            sys.modules["numpy"].random.set_state(numpy)


@contextmanager
def quiet(tape: Tape) -> Iterator[None]:
    """Within it the tape is played, and nothing is left of that afterwards."""
    drawn = {d.device for op in tape.ops for d in op.drawn if d.device.startswith("cuda")}
    devices = sorted(drawn | {str(v.device) for v in tape.values.values() if v.device.type == "cuda"})
    with undisturbed(devices), torch.inference_mode(False), torch._C.DisableTorchFunction():
        torch.set_default_dtype(tape.dtype)
        yield


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None else None


def restore(drawn: tuple[Drawn, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Puts the generators into the state in which the op found them; a user's own is replaced by one like it."""
    kwargs = dict(kwargs)
    for d in drawn:
        if d.device == "cpu":
            torch.set_rng_state(d.state)
        elif d.device:
            torch.cuda.set_rng_state(d.state, d.device)
        elif kwargs.get("generator") is GENERATOR:
            kwargs["generator"] = torch.Generator().set_state(d.state)
    return kwargs


class Autocast:
    """Sets autocast as each op had it, with its cache of casts kept and emptied where it was, and puts it back."""

    def __init__(self, tape: Tape) -> None:
        used = {kind for op in tape.ops for kind, _ in op.context.autocast}
        self._needed = bool(used) or any(torch.is_autocast_enabled(k) for k in ("cpu", "cuda"))
        self._kinds = sorted(used | {"cpu", "cuda"})
        self._now: Context | None = None
        self._before: list[Any] = []
        self._nested = False

    def begin(self) -> None:
        self._now = None
        if self._needed:
            self._before = [(k, torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in self._kinds]
            self._cache = torch.is_autocast_cache_enabled()
            self._nested = torch.autocast_increment_nesting() > 1  # the user's cache, if we are in a block of theirs

    def set(self, context: Context) -> None:
        now = self._now
        if not self._needed or (now is not None and _same(now, context)):
            return
        if now is not None and now.scope != context.scope:
            self._clear()
        on = dict(context.autocast)
        for kind in self._kinds:
            torch.set_autocast_enabled(kind, kind in on)
            if kind in on:
                torch.set_autocast_dtype(kind, on[kind])
        torch.set_autocast_cache_enabled(context.cache)
        self._now = context

    def end(self) -> None:
        if not self._needed:
            return
        torch.autocast_decrement_nesting()
        self._clear()
        for kind, enabled, dtype in self._before:
            torch.set_autocast_enabled(kind, enabled)
            torch.set_autocast_dtype(kind, dtype)
        torch.set_autocast_cache_enabled(self._cache)

    def _clear(self) -> None:
        if not self._nested:
            torch.clear_autocast_cache()


def _same(a: Context, b: Context) -> bool:
    return a.autocast == b.autocast and a.cache == b.cache and a.scope == b.scope
