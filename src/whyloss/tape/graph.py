"""A tape as plain data, without torch: what rules and the journal get of it."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from whyloss.core import step_graph as plain
from whyloss.core.step_graph import ELEMENTWISE, PRODUCTS, StepGraph
from whyloss.tape.tape import Leaf, Op, Ref, Tape, Value

MOST_ITEMS = 32  # of a list that is kept
MOST_TEXT = 1000  # characters
DEPTH = 3  # of lists in lists

_WRITTEN = """
    linear: input weight bias
    conv1d conv2d conv3d: input weight bias stride padding dilation groups
    conv_transpose1d conv_transpose2d conv_transpose3d: input weight bias stride padding output_padding groups dilation
    bilinear: input1 input2 weight bias
    addmm: input mat1 mat2
    addmv: input mat vec
    addbmm baddbmm: input batch1 batch2
    scaled_dot_product_attention: query key value attn_mask dropout_p is_causal
    softmax log_softmax: input dim dtype
    gelu: input approximate
    softplus: input beta threshold
    dropout: input p training
    max_pool1d max_pool2d max_pool3d: input kernel_size stride padding dilation ceil_mode return_indices
    avg_pool1d avg_pool2d avg_pool3d: input kernel_size stride padding ceil_mode count_include_pad
    all amax amin any argmax argmin logsumexp max mean min prod sum: input dim keepdim
    cumprod cumsum squeeze std unsqueeze var: input dim
    topk: input k dim largest sorted
    gather index_select: input dim index
    cat concat stack: tensors dim
    where: condition input other
    masked_fill: input mask value
    clamp: input min max
    cosine_similarity: x1 x2 dim eps
    one_hot: input num_classes
    flatten: input start_dim end_dim
    transpose swapaxes swapdims: input dim0 dim1
    getitem: input key
    setitem: input key value
    data: input value
    requires_grad: input requires_grad
    pow: input exponent
"""
NAMES = {kind: ("input", "other") for kind in ELEMENTWISE | PRODUCTS - {"einsum", "tensordot"}} | {
    kind: tuple(names.split())
    for kinds, names in (line.split(":") for line in _WRITTEN.strip().splitlines())
    for kind in kinds.split()
}


def step_graph(tape: Tape) -> StepGraph:
    """The step without its tensors: what each call was given and made, shapes, figures, the user's lines."""
    values = {n: _value(value, tape.leaves.get(n)) for n, value in tape.values.items()}
    leaves = (
        plain.Leaf(value=n, role=leaf.role.value, name=leaf.name, carried=leaf.carried)
        for n, leaf in tape.leaves.items()
    )
    return StepGraph(
        ops=tuple(_op(op) for op in tape.ops),
        values=values,
        leaves=tuple(leaves),
        losses=tape.losses,
        aside=tuple(_op(op) for op in tape.aside),
        step=tape.step,
        trace=tape.trace,
        training=tape.training,
        faithful=tape.faithful,
        reason="" if tape.faithful else tape.reason,
    )


def _value(value: Value, leaf: Leaf | None) -> plain.Value:
    return plain.Value(
        shape=value.shape,
        dtype=_without_torch(value.dtype),
        requires_grad=leaf.requires_grad if leaf is not None else value.requires_grad,
        statistics=value.statistics,
    )


def _op(op: Op) -> plain.Op:
    tensors: dict[str, int] = {}
    arguments: dict[str, Any] = {}
    for name, given in _bound(op):
        found = dict(_tensors(name, given))
        tensors |= found
        if not found or not _only_tensors(given):
            arguments[name] = plain_data(given)
    return plain.Op(
        name=op.name,
        tensors=tensors,
        outputs=op.outputs,
        changed=op.changed,
        arguments=arguments,
        grad=op.context.grad,
        autocast=bool(op.context.autocast),
        module=op.module,
        place=op.place,
    )


# -- names of arguments


def _bound(op: Op) -> Iterator[tuple[str, Any]]:
    """Each argument under its parameter's name, or its place where that is not known."""
    names = _parameters(op)
    for i, given in enumerate(op.args):
        name = names[i] if i < len(names) else str(i)
        yield "other" if name == "dim" and isinstance(given, Ref) else name, given  # max of two tensors
    yield from op.kwargs.items()


def _parameters(op: Op) -> tuple[str, ...]:
    """Names of the positional parameters, as far as they are known."""
    named = _signature(op.call) if inspect.isfunction(op.call) else ()
    if named:
        return named
    first = ("input",) if op.name.startswith("torch.") and op.args and isinstance(op.args[0], Ref) else ()
    return NAMES.get(plain.Op(name=op.name).kind, first)


def _signature(call: Callable[..., Any]) -> tuple[str, ...]:
    """Empty where it takes any number of arguments, or does not say."""
    try:
        parameters = inspect.signature(call).parameters.values()
    except (TypeError, ValueError):
        return ()
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return ()
    return tuple("input" if p.name == "self" else p.name for p in parameters)


# -- values of arguments


def _tensors(name: str, given: Any) -> Iterator[tuple[str, int]]:
    if isinstance(given, Ref):
        yield name, given.index
    elif isinstance(given, dict):
        for key, item in given.items():
            yield from _tensors(f"{name}[{key}]", item)
    elif isinstance(given, tuple | list):
        for i, item in enumerate(given):
            yield from _tensors(f"{name}[{i}]", item)
    elif isinstance(given, slice):
        yield from _tensors(name, {"start": given.start, "stop": given.stop, "step": given.step})


def _only_tensors(given: Any) -> bool:
    return isinstance(given, Ref) or (isinstance(given, tuple | list) and all(_only_tensors(item) for item in given))


def plain_data(given: Any, depth: int = DEPTH) -> Any:
    """As JSON can hold it. A tensor is {"tensor": number}; of long lists the length is left, of objects their class."""
    if given is None or isinstance(given, bool):
        return given
    if isinstance(given, Ref):
        return {"tensor": given.index}
    if isinstance(given, np.generic):
        return plain_data(given.item())
    if isinstance(given, int | float | complex | str):
        return _scalar(given)
    if isinstance(given, torch.dtype | torch.layout | torch.memory_format | torch.device):
        return _without_torch(given)
    if isinstance(given, tuple | list | dict | slice):
        return _collection(given, depth - 1)
    return "..." if given is Ellipsis else type(given).__name__


def _scalar(given: int | float | complex | str) -> int | float | str:
    if isinstance(given, float):
        return float(given)
    if isinstance(given, int) and -(2**63) <= given < 2**63:
        return int(given)
    return str(given)[:MOST_TEXT]


def _collection(given: Any, depth: int) -> Any:
    if isinstance(given, slice):
        return {"slice": [plain_data(part) for part in (given.start, given.stop, given.step)]}
    if len(given) > MOST_ITEMS or depth <= 0:
        return f"{type(given).__name__} of {len(given)}"
    if isinstance(given, dict):
        return {str(key)[:MOST_TEXT]: plain_data(item, depth) for key, item in given.items()}
    return [plain_data(item, depth) for item in given]


def _without_torch(given: object) -> str:
    return str(given).removeprefix("torch.")
