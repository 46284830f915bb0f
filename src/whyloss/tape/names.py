"""The calls that a bundle may hold, by torch's own names: arithmetic on tensors, and nothing that reaches further."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch.overrides import get_overridable_functions, resolve_name

from whyloss.tape.tape import BACKWARD


def _words(text: str, form: str = "{}") -> frozenset[str]:
    return frozenset(form.format(word) for word in text.split())


GRAD = "torch.autograd.grad"
READ = _words("data T H mT mH real imag grad", "torch.Tensor.{}")
WRITTEN = _words("data requires_grad", "torch.Tensor.{}.__set__")
FACTORIES = _words(
    """
    arange as_tensor bartlett_window blackman_window empty empty_permuted empty_strided eye fft.fftfreq fft.rfftfreq
    full hamming_window hann_window kaiser_window linspace logspace normal ones rand randint randn randperm range
    scalar_tensor tensor tril_indices triu_indices zeros
    """,
    "torch.{}",
)
_SPACES = _words("torch torch.Tensor torch.functional torch.nn.functional torch.special torch.linalg torch.fft")
# What torch does not list as overridable, though a mode sees it.
_UNLISTED = _words(
    """
    as_strided fill rand_like randint_like randn_like vander
    Tensor.new_empty Tensor.new_empty_strided Tensor.new_full Tensor.new_ones Tensor.new_tensor Tensor.new_zeros
    Tensor.unflatten nn.functional.hardsigmoid nn.functional.hardswish nn.functional.sigmoid nn.functional.tanh
    nn.functional.upsample nn.functional.upsample_bilinear nn.functional.upsample_nearest
    """,
    "torch.{}",
)
# Calls of torch's own modules, by the names that a mode sees.
_PRIVATE = _words("_pack_padded_sequence _pad_packed_sequence _weight_norm", "torch._VariableFunctionsClass.{}")
_BINARY = "add and div floordiv lshift matmul mod mul or pow rshift sub truediv xor"
_OPERATORS = (
    _words(f"{_BINARY} eq ge getitem gt invert le lt ne setitem", "__{}__")
    | _words(_BINARY, "__i{}__")
    | _words(_BINARY, "__r{}__")
)
# Memory and files, hooks and callbacks, settings and processes, values that leave torch, other layouts.
_FORBIDDEN = _words(
    """
    apply_ as_subclass asarray autocast backward boolean_dispatch coalesce compile const_data_ptr data_ptr dequantize
    dim_order element_size embedding_renorm_ empty_quantized fork from_file from_numpy frombuffer grad_fn
    handle_torch_function hash_tensor hspmm int_repr ipu item load lobpcg map2_ map_ module_load mtia new numpy
    pin_memory qscheme record_stream register_hook register_post_accumulate_grad_hook reinforce resize resize_
    resize_as resize_as_ resize_as_sparse_ retain_grad save share_memory_ slice_inverse smm spmm sspaddmm storage
    storage_type to_dense to_mkldnn tolist triplet_margin_with_distance_loss untyped_storage values values_copy vmap
    wait xpu
    """
)
_FORBIDDEN_BEGINNINGS = tuple(
    _words(
        """
        batch_norm_ ccol_ choose_qparams col_ crow_ cudnn_ fake_quantize fbgemm_ fused_moving get_ import_ indices
        init_ is_ miopen_ mkldnn_ native_ parse_ q_ quantize row_indices set_ sparse_ sym_ to_sparse use_
        """
    )
)


def call_of(name: str) -> Callable[..., Any] | None:
    """The function of that name; None where it is not one that a bundle may hold."""
    return _calls().get(name)


@cache
def _calls() -> dict[str, Callable[..., Any]]:
    calls: dict[str, Callable[..., Any]] = {BACKWARD: torch.autograd.backward, GRAD: torch.autograd.grad}
    for listed in get_overridable_functions().values():
        named = {resolve_name(function): function for function in listed}
        calls |= {name: function for name, function in named.items() if name is not None and _is_arithmetic(name)}
    there = {name: _attribute(name) for name in (*FACTORIES, *_UNLISTED, *_in_place())}
    there |= {name: getattr(torch, name.rpartition(".")[2], None) for name in _PRIVATE}
    calls |= {name: function for name, function in there.items() if function is not None}
    calls |= {name: _attribute(name).__get__ for name in READ}
    calls |= {name: _attribute(name.removesuffix(".__set__")).__set__ for name in WRITTEN}
    return calls


def _is_arithmetic(name: str) -> bool:
    space, _, last = name.rpartition(".")
    if space not in _SPACES or name == "torch.cond":
        return False
    if last in _FORBIDDEN or last.startswith(_FORBIDDEN_BEGINNINGS):
        return False
    return last in _OPERATORS or not last.startswith("_")


def _in_place() -> Iterator[str]:
    """torch.relu_ and its like, which torch does not list either."""
    for space, owner in (("torch", torch), ("torch.nn.functional", torch.nn.functional)):
        for last in vars(owner):
            if last.endswith("_") and not last.startswith("_") and _is_arithmetic(f"{space}.{last}"):
                yield f"{space}.{last}"


def _attribute(name: str) -> Any:
    """None where this torch has no such function."""
    found: Any = torch
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found
