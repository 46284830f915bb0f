"""tying-broken."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.run import Run, Tensor, Trace
from whyloss.core.sample import sample_run, sample_tensors
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class TyingBroken(Rule):
    """The embedding and the output layer began as one weight, and are two that drift apart.

    ## What it detects
    An Embedding and a Linear of one model whose weights have the same shape and were equal before the first update (the
    same mean, standard deviation and largest value to the last bit), are two tensors, are both trained, and differ
    since.
    ## Why it matters
    Random weights are never equal by chance: they were tied once, and something has put a copy in the place of one. The
    model has more parameters than it should, each trained with half of the signal, and a checkpoint saves both.
    ## What else looks like this
    Tied weights (one tensor with two names, or two that share their memory: they never differ); layers that were copied
    from one another, as in nn.TransformerEncoder; target networks and averages. None of them is reported.
    ## What to do
    Tie again after whatever replaced a parameter: `load_state_dict(assign=True)`, a new head, `deepcopy`, FSDP or a
    move to another device: `model.head.weight = model.embedding.weight`. Then build the optimizer.
    """

    name = "tying-broken"
    boundary = Boundary.EVALUATION
    explains = ("overfitting",)
    change = "Tie the weights again, before the optimizer is built: head.weight = embedding.weight."
    verify = "Run again: the two are one tensor, and the model has that many values fewer."

    apart: float = threshold(
        1e-6, unit="of the norm", why="float32 keeps 1e-7: equal weights with equal updates stay below it"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        pairs = [(e, h) for e in _weights(trace, "Embedding") for h in _weights(trace, "Linear") if _twins(e, h)]
        found = [f for e, h in pairs if (f := self._drift(trace, e, h)) is not None]
        yield from found
        if found:
            return
        if all(t.std is None for t in trace.tensors):
            yield self.skipped("needs the values of the weights before the first update")
            return
        yield self.passed(
            "no embedding and output layer began as equal copies" if not pairs else "copies are equal still"
        )

    def _drift(self, trace: Trace, embedding: Tensor, head: Tensor) -> Finding | None:
        one, other = (trace.signal(f"weight/norm[{t.name}]") for t in (embedding, head))
        if one is None or other is None or len(one) != len(other) or len(one) < 2:
            return None
        difference = np.abs(one.values - other.values) / np.maximum(one.values, 1e-30)
        if difference[0] > self.apart or not difference.max() > self.apart:
            return None
        first = int(one.steps[np.flatnonzero(difference > self.apart)[0]])
        figures = f"{head.mean:.9g}, {head.std:.9g}, {head.largest:.9g}"
        return self.finding(
            f"{embedding.name} and {head.name} began as equal copies of {list(head.shape)} and are trained apart: "
            "weights that were tied and no longer are",
            Evidence("mean, std and largest value of both, at the start", figures),
            Evidence(
                "difference of their norms, at most", float(difference.max()), self.apart, "of the norm", (first,)
            ),
            Evidence("values too many", head.size, 0),
            severity=Severity.WARNING,
            place=trace.place_of(head),
            first_step=first,
            certain=True,
            change=f"Tie them again, before the optimizer is built: {_path(head)} = {_path(embedding)}.",
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        drift = np.linspace(1.0, 1.5, 200)
        tied = (_weight(0, "embedding", "Embedding", aliases=("head.weight",)),)
        two_linear = _run({}, drift, kind="Linear")
        return (
            fires("equal at the start, then apart", _run({}, drift), Severity.WARNING),
            silent("near miss: equal to the end, as with shared memory", _run({}, np.ones(200))),
            silent("near miss: one tensor", sample_run(tensors=[*sample_tensors(), *tied])),
            silent("near miss: two random weights", _run({"mean": 0.0011, "largest": 3.7}, drift)),
            silent("near miss: another shape", _run({"shape": (16, 50)}, drift)),
            silent("near miss: the embedding is frozen", _run({"trainable": False}, drift)),
            silent("near miss: two layers copied from one another", two_linear),
            silent("near miss: both start at zero", _run({"std": 0.0}, drift, std=0.0)),
        )


def _weights(trace: Trace, kind: str) -> list[Tensor]:
    return [t for t in trace.trained if t.kind.endswith(kind) and len(t.shape) == 2 and t.in_model and t.std]


def _twins(a: Tensor, b: Tensor) -> bool:
    figures = [(t.shape, t.std, t.mean, t.largest) for t in (a, b)]
    return a.key != b.key and figures[0] == figures[1]


def _path(t: Tensor) -> str:
    return f"model.{t.name}"


def _weight(key: int, module: str, kind: str, **more: Any) -> Tensor:
    fields: dict[str, Any] = {"shape": (50, 16), "std": 0.98, "mean": 0.0012, "largest": 3.6, "in_graph": True}
    return Tensor(key=100 + key, name=f"{module}.weight", module=module, kind=kind, **(fields | more))


def _run(embedding: dict[str, Any], norm: Any, kind: str = "Embedding", **head: Any) -> Run:
    two = _weight(0, "embedding", kind, **embedding), _weight(1, "output", "Linear", **head)
    signals = {"weight/norm[embedding.weight]": 1.0, "weight/norm[output.weight]": norm}
    return sample_run(tensors=[*sample_tensors(), *two], signals=signals)
