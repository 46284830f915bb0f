"""Graphs of steps written down by hand: the ground on which rules show what they fire on, and tests stand.

>>> step = SampleGraph()
>>> logits = step.linear(step.leaf("input", "x", 8, 4), "head", 3)
>>> loss = step.loss("cross_entropy", logits, step.leaf("target", "", 8, dtype="int64"))
>>> [op.kind for op in step.graph(loss).loss_ops]
['cross_entropy']
"""

from collections.abc import Mapping, Sequence
from typing import Any

from whyloss.core.finding import Place
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import BACKWARD, Leaf, Op, StepGraph, Value

F = "torch.nn.functional."
T = "torch.Tensor."
ZEROS = Statistics(low=0.0, high=0.0, mean=0.0, std=0.0, zeros=1.0, nonfinite=0, integral=True)


def figures(low: float, high: float, mean: float | None = None, std: float | None = None, **more: Any) -> Statistics:
    """Of values spread evenly between two, unless it is said otherwise."""
    middle = (low + high) / 2 if mean is None else mean
    spread = (high - low) / 12**0.5 if std is None else std
    fields = {"low": low, "high": high, "mean": middle, "std": spread, "zeros": 0.0, "nonfinite": 0}
    return Statistics(**(fields | more))


class SampleGraph:
    """Writes a step down call by call; a tensor is its number. Each call stands on a line of its own in train.py."""

    def __init__(self) -> None:
        self.values: dict[int, Value] = {}
        self.leaves: list[Leaf] = []
        self.ops: list[Op] = []
        self.aside: list[Op] = []

    def value(self, shape: Sequence[int], dtype: str = "float32", requires_grad: bool = False, **more: Any) -> int:
        number = len(self.values)
        self.values[number] = Value(shape=tuple(shape), dtype=dtype, requires_grad=requires_grad, **more)
        return number

    def leaf(self, role: str, name: str, *shape: int, dtype: str = "float32", **more: Any) -> int:
        requires_grad = more.pop("requires_grad", role == "parameter")
        number = self.value(shape, dtype, requires_grad, statistics=more.pop("statistics", None))
        self.leaves.append(Leaf(value=number, role=role, name=name, **more))
        return number

    def call(
        self,
        name: str,
        *inputs: int,
        shape: Sequence[int] = (8, 4),
        dtype: str = "float32",
        live: bool | None = None,
        aside: bool = False,
        out: tuple[int, ...] | None = None,
        tensors: Mapping[str, int] | None = None,
        statistics: Statistics | None = None,
        **more: Any,
    ) -> int:
        """The number of its one result; `out=()` for none. It requires grad where an input does, unless `live` says."""
        named = dict(tensors) if tensors is not None else {str(i): n for i, n in enumerate(inputs)}
        if out is None:
            passes = any(self.values[n].requires_grad for n in named.values()) and more.get("grad", True)
            out = (self.value(shape, dtype, passes if live is None else live, statistics=statistics),)
        where = more.pop("place", None) or Place(file="train.py", line=len(self.ops) + len(self.aside) + 1)
        op = Op(name=name, tensors=named, outputs=out, place=where, **more)
        (self.aside if aside else self.ops).append(op)
        return out[0] if out else -1

    def linear(self, x: int, name: str, width: int = 4, **more: Any) -> int:
        """A linear layer with that many outputs, on whatever stands before the last axis."""
        shape = self.values[x].shape
        weight = self.leaf("parameter", f"{name}.weight", width, *shape[-1:])
        fields = {"shape": (*shape[:-1], width), "module": name} | more
        return self.call(F + "linear", tensors={"input": x, "weight": weight}, **fields)

    def like(self, name: str, *inputs: int, **more: Any) -> int:
        """A call whose result has the shape of what it is given first."""
        return self.call(name, *inputs, **({"shape": self.values[inputs[0]].shape} | more))

    def loss(self, kind: str, x: int, y: int, *, statistics: Statistics | None = None, **arguments: Any) -> int:
        named = {"input": x, "target": y}
        return self.call(F + kind, tensors=named, shape=(), statistics=statistics, arguments=arguments)

    def graph(self, *losses: int, backward: bool = True, **more: Any) -> StepGraph:
        end = (Op(name=BACKWARD, tensors={f"tensors[{i}]": n for i, n in enumerate(losses)}),) if backward else ()
        return StepGraph(
            faithful=bool(more.pop("faithful", True)),
            ops=(*self.ops, *end),
            aside=tuple(self.aside),
            leaves=tuple(self.leaves),
            values=self.values,
            losses=losses,
            **more,
        )
