"""What a gradient reaches: which tensors got one, which modules ran, which weights move. Asked by several rules."""

from collections.abc import Iterable, Sequence

import numpy as np

from whyloss.core.run import Run, Tensor, Trace
from whyloss.core.series import Floats, absent, not_observed

Tensors = tuple[Tensor, ...]


def listed(tensors: Sequence[Tensor]) -> str:
    """`encoder.0.weight and 5 more tensors`: how a finding names a group."""
    more = len(tensors) - 1
    name = tensors[0].name if tensors else "no tensor"
    return name if more < 1 else f"{name} and {more} more tensor{'s' if more > 1 else ''}"


def values(tensors: Iterable[Tensor]) -> int:
    """How many numbers the tensors hold."""
    return sum(t.size for t in tensors)


def held(run: Run) -> frozenset[int]:
    """Keys of the tensors that an optimizer holds, of any trace."""
    return frozenset(t.key for trace in run.traces for t in trace.tensors if t.in_optimizer)


def beside(tensor: Tensor, tensors: Tensors) -> Tensors:
    """Those of the same part of the model: the same first name."""
    return tuple(t for t in tensors if _top(t) == _top(tensor))


def stray(tensor: Tensor) -> bool:
    """A tensor that no module in memory has."""
    return not tensor.in_model and not tensor.module


def without_gradient(trace: Trace, tensors: Tensors, updates: int) -> Tensors:
    """Those whose gradient was None at every update, at `updates` of them and more."""
    _, grads = trace.matrix("grad/norm", tensors)
    none = absent(grads)
    seen = _observed(grads)
    always = (none.sum(axis=0) >= updates) & ~(seen & ~none).any(axis=0)
    return _where(tensors, always)


def lately_without_gradient(trace: Trace, tensors: Tensors, updates: int) -> Tensors:
    """Those whose gradient was None at each of the last `updates` updates."""
    _, grads = trace.matrix("grad/norm", tensors)
    if len(grads) < updates:
        return ()
    return _where(tensors, np.all(absent(grads[-updates:]), axis=0))


def with_gradient(trace: Trace, tensors: Tensors, updates: int) -> Tensors:
    """Those with a gradient above 0 at `updates` updates and more.

    One that is the same to the last bit throughout, while the loss is not, was left by an earlier backward pass.
    """
    _, grads = trace.matrix("grad/norm", tensors)
    above = np.isfinite(grads) & (grads > 0.0)
    kept = above & (grads == grads[:1])
    old = kept.all(axis=0) if len(grads) > 1 and not _constant(trace) else np.zeros(len(tensors), dtype=bool)
    return _where(tensors, (above.sum(axis=0) >= updates) & ~old)


def _constant(trace: Trace) -> bool:
    return trace.loss is None or bool(np.all(trace.loss.values == trace.loss.first))


def moved(trace: Trace, tensors: Tensors) -> Tensors:
    """Those whose norm was not the same to the last bit at every observed update."""
    _, norms = trace.matrix("weight/norm", tensors)
    if not norms.size:
        return ()
    finite = np.isfinite(norms)
    low, high = np.where(finite, norms, np.inf).min(axis=0), np.where(finite, norms, -np.inf).max(axis=0)
    return _where(tensors, high > low)


def reached_elsewhere(run: Run, trace: Trace) -> frozenset[int]:
    """Keys of the tensors to which another trace saw a gradient come."""
    others = (o for o in run.traces if o is not trace)
    return frozenset(t.key for o in others for t in with_gradient(o, o.tensors, 1))


def outside(run: Run, trace: Trace, updates: int) -> Tensors:
    """Trainable tensors that the loss reaches, that no optimizer holds and that nothing else changes either.

    A leaf that is no module's parameter may be an input that wants its gradient, and is left out.
    """
    known = held(run)
    free = tuple(t for t in trace.tensors if t.trainable and not t.in_optimizer and t.key not in known)
    reached = with_gradient(trace, tuple(t for t in free if t.kind), updates)
    parts = {_top(t) for t in moved(trace, reached)}
    return in_order(trace, tuple(t for t in reached if _top(t) not in parts))


def norm_at(trace: Trace, tensors: Tensors, row: int) -> float:
    """The gradient norm of a group at a row of the table, over the tensors that had one."""
    _, grads = trace.matrix("grad/norm", tensors)
    finite = grads[row][np.isfinite(grads[row])] if len(grads) else np.zeros(0)
    return float(np.sqrt(np.sum(finite**2)))


def ran(trace: Trace, tensor: Tensor) -> bool | None:
    """Whether the module that owns the tensor ran in training; None where nothing was watched or nobody owns it.

    nn.MultiheadAttention uses the weight of its `out_proj` without calling it.
    """
    if stray(tensor) or all(m.order is None for m in trace.modules):
        return None
    module = trace.module(tensor.module)
    if module is None or module.order is not None:
        return None if module is None else True
    parent = trace.module(tensor.module.rpartition(".")[0])
    return parent is not None and parent.kind == "MultiheadAttention" and parent.order is not None


def depth(trace: Trace, tensor: Tensor) -> int:
    """The order of the module in the forward pass, of its parent where only that was seen; -1: not known."""
    own = trace.depth(tensor)
    parent = trace.module(tensor.module.rpartition(".")[0])
    return own if own >= 0 or parent is None or parent.order is None else parent.order


def in_order(trace: Trace, tensors: Tensors) -> Tensors:
    """In the order of the forward pass; those of which it is not known at the end."""
    return tuple(sorted(tensors, key=lambda t: d if (d := depth(trace, t)) >= 0 else len(trace.modules)))


def copies(trace: Trace, tensors: Tensors) -> Tensors:
    """Those that began as an exact copy of a tensor which does get gradients: a target network, an average.

    Constant ones (norm layers, zero biases) count only beside a copy that is none by accident.
    """
    keys = {t.key for t in tensors}
    alive = {_print(t) for t in with_gradient(trace, trace.tensors, 1) if t.key not in keys}
    same = tuple(t for t in tensors if t.std is not None and _print(t) in alive)
    proven = {_top(t) for t in same if t.std}
    return tuple(t for t in same if _top(t) in proven)


def _top(t: Tensor) -> str:
    return t.name.partition(".")[0]


def idle(trace: Trace, updates: int) -> tuple[Tensors, Tensors]:
    """Trained tensors that never had a gradient and that no loss reaches: those whose modules ran, and the unused ones.

    A parameter is unused, too, where its module ran and gradients reach the others of that module, or its children.
    A tensor that the loss does reach had its gradient taken away later, which is another matter. Strays of a model
    (no module owns them) are in neither.
    """
    none = tuple(t for t in without_gradient(trace, trace.trained, updates) if t.in_graph is not True)
    alive = {t.module for t in with_gradient(trace, trace.tensors, 1) if t.module or t.in_model}
    cut: list[Tensor] = []
    unused: list[Tensor] = []
    for t in none:
        used = ran(trace, t)
        if used is None and not trace.modules:
            cut.append(t)  # bare tensors, trained without modules
        elif used is not None:
            (unused if not used or _around(t, alive) else cut).append(t)
    return tuple(cut), tuple(unused)


def kept_elsewhere(trace: Trace, tensors: Tensors) -> Tensors:
    """Those that somebody else updates, or will: their part of the model moves with no gradient, or is a copy."""
    parts = {_top(t) for t in moved(trace, tensors)}
    same = copies(trace, tensors)
    return tuple(t for t in tensors if t in same or _top(t) in parts)


def _around(tensor: Tensor, alive: set[str]) -> bool:
    """Whether gradients reach the tensor's own module or a child of it."""
    below = f"{tensor.module}." if tensor.module else ""
    return any(path == tensor.module or path.startswith(below) for path in alive)


def _print(t: Tensor) -> tuple[object, ...]:
    return t.shape, t.std, t.mean, t.largest


def _observed(block: Floats) -> np.ndarray:
    """True where something was recorded. A column that does not exist is a plain NaN throughout."""
    plain = np.isnan(block) & ~absent(block)
    return ~(not_observed(block) | plain.all(axis=0)) if block.size else np.zeros(block.shape, dtype=bool)


def _where(tensors: Tensors, keep: np.ndarray) -> Tensors:
    return tuple(t for t, k in zip(tensors, keep.tolist(), strict=True) if k)
