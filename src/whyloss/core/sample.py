"""A made-up healthy run, to change one thing of: the ground on which rules show what they fire on, and tests stand.

>>> run = sample_run(signals={"lr[0]": 0.0})
>>> float(run.traces[0].signal("lr[0]").last)
0.0
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from whyloss.core.finding import Place
from whyloss.core.probe import Probe
from whyloss.core.run import Call, Facts, Module, Objective, Run, Table, Tensor, Trace
from whyloss.core.series import NOT_OBSERVED, Floats

WIDTHS = (64, 32, 32, 10)
ORDER = (Call("zero_grad", "train.py", 20), Call("backward", "train.py", 22), Call("step", "train.py", 23))


def falling(updates: int, start: float = 2.3026, end: float = 0.2, noise: float = 0.03) -> Floats:
    """An exponential fall with a little multiplicative noise, from a generator with a fixed seed."""
    t = np.arange(updates) / max(updates - 1, 1)
    wobble = np.random.default_rng(0).normal(0.0, noise, updates)
    return np.asarray((end + (start - end) * np.exp(-5 * t)) * (1 + wobble))


def flat(updates: int, level: float = 2.3026, noise: float = 0.002) -> Floats:
    return np.asarray(level * (1 + np.random.default_rng(1).normal(0.0, noise, updates)))


def sample_tensors(widths: Sequence[int] = WIDTHS) -> tuple[Tensor, ...]:
    """Weights and biases of an MLP as PyTorch initialises them: fc1, fc2, …, head."""
    tensors: list[Tensor] = []
    for i, (fan_in, fan_out) in enumerate(pairwise(widths)):
        name = "head" if i == len(widths) - 2 else f"fc{i + 1}"
        bound = fan_in**-0.5
        for part, shape in (("weight", (fan_out, fan_in)), ("bias", (fan_out,))):
            tensors.append(
                Tensor(
                    key=len(tensors),
                    name=f"{name}.{part}",
                    module=name,
                    kind="Linear",
                    shape=shape,
                    in_graph=True,
                    std=bound / 3**0.5,
                    mean=0.0,
                    largest=bound * 0.999,
                )
            )
    return tuple(tensors)


def sample_modules(widths: Sequence[int] = WIDTHS, activation: str = "ReLU") -> tuple[Module, ...]:
    """fc1, act1, fc2, act2, …, head, in forward order."""
    names: list[tuple[str, str]] = []
    for i in range(len(widths) - 2):
        names += [(f"fc{i + 1}", "Linear"), (f"act{i + 1}", activation)]
    names.append(("head", "Linear"))
    return tuple(
        Module(path=n, kind=k, order=i, place=Place(file="train.py", line=10 + i), slots=(n,))
        for i, (n, k) in enumerate(names)
    )


def sample_run(
    updates: int = 200,
    *,
    every: int = 10,
    loss: ArrayLike | None = None,
    signals: Mapping[str, Any] | None = None,
    tensors: Sequence[Tensor] | None = None,
    modules: Sequence[Module] | None = None,
    changed: Mapping[str, Mapping[str, Any]] | None = None,
    order: Sequence[Call] = ORDER,
    facts: Facts | None = None,
    pending: Sequence[Any] = (),
    **trace: Any,
) -> Run:
    """A finished run of a three-layer classifier that learns, observed in full at 20 updates and each `every`.

    `signals`: name → constant or one value an update (marks of core.series allowed; new names are added).
    `changed`: tensor or module name → fields to replace. `trace`: fields of Trace to replace.
    """
    tensors = tuple(tensors) if tensors is not None else sample_tensors()
    modules = tuple(modules) if modules is not None else sample_modules()
    tensors = tuple(replace(t, **(changed or {}).get(t.name, {})) for t in tensors)
    modules = tuple(replace(m, **(changed or {}).get(m.path, {})) for m in modules)
    curve = np.asarray(falling(updates) if loss is None else loss, dtype=np.float64)
    updates = len(curve)
    columns = _healthy_signals(tensors, modules, curve) | {k: _column(v, updates) for k, v in (signals or {}).items()}
    steps = np.arange(updates)
    observed = steps[(steps < 20) | (steps % every == 0)]
    in_full = {
        k for k in columns if k.startswith(("weight/", "update/", "activation/", "rows/", "target/", "objective/"))
    }
    fields: dict[str, Any] = {
        "optimizer": "Adam",
        "place": Place(file="train.py", line=15, source="optimizer = Adam(model.parameters(), lr=1e-3)"),
        "step_place": Place(file="train.py", line=23, source="optimizer.step()"),
        "objectives": (Objective(kind="cross_entropy", classes=10),),
        "orders": (tuple(order),),
        "model": "Net",
    }
    made = Trace(
        index=0,
        tensors=tensors,
        modules=modules,
        every=_table(steps, {k: v for k, v in columns.items() if k not in in_full}),
        sampled=_table(observed, {k: columns[k][observed] for k in in_full}),
        **(fields | trace),
    )
    return Run(traces=(made,), facts=facts or Facts(script="train.py", end="finished"), pending=tuple(pending))


def with_probe(
    run: Run, name: str, outcome: str, numbers: Mapping[str, float], *, step: int = 30, subject: str = ""
) -> Run:
    """The run, and an experiment that was made on a recorded step of its first optimizer."""
    place = Place(file="train.py", line=21, source="loss = F.cross_entropy(model(x), y)")
    made = Probe(name=name, trace=0, step=step, outcome=outcome, subject=subject, place=place, numbers=numbers)
    return replace(run, probes=(*run.probes, made))


def _healthy_signals(tensors: Sequence[Tensor], modules: Sequence[Module], loss: Floats) -> dict[str, Floats]:
    n = len(loss)
    wobble = 1 + np.random.default_rng(2).normal(0.0, 0.1, n)
    out: dict[str, Floats] = {
        "loss/train": loss,
        "lr[0]": np.full(n, 1e-3),
        "backwards": np.ones(n),
        "order": np.zeros(n),
        "training": np.ones(n),
        "grad/leftover": np.where(np.arange(n) < 20, 0.0, NOT_OBSERVED),
        "target/entropy": np.full(n, np.log(10)),
    }
    for t in tensors:
        weight = (t.std or 0.1) * np.sqrt(t.size)
        out[f"grad/norm[{t.name}]"] = 0.1 * wobble
        out[f"weight/norm[{t.name}]"] = np.full(n, weight)
        out[f"update/norm[{t.name}]"] = 2e-3 * weight * wobble
        if len(t.shape) > 1:
            out[f"rows/spread[{t.name}]"] = 1.29 + 0.01 * wobble  # weights that learn turn
    for slot in (s for m in modules for s in m.slots):
        kind = next(m.kind for m in modules if slot in m.slots)
        for part, value in (("mean", 0.1), ("std", 0.5), ("low", 0.0), ("high", 3.0), ("zeros", 0.5), ("dead", 0.02)):
            out[f"activation/{part}[{slot}]"] = np.full(n, value if kind == "ReLU" or part in ("std", "high") else 0.0)
        out[f"activation/window[{slot}]"] = np.minimum(np.arange(n) + 1.0, 40.0)
    out["grad/total"] = np.sqrt(sum((out[f"grad/norm[{t.name}]"] ** 2 for t in tensors), np.zeros(n)))
    return out


def _column(value: Any, updates: int) -> Floats:
    if np.ndim(value) == 0:  # np.full keeps the bits of a marked NaN
        return np.full(updates, value, dtype=np.float64)
    return np.asarray(value, dtype=np.float64)


def _table(steps: Any, columns: Mapping[str, Floats]) -> Table:
    values = np.stack(list(columns.values()), axis=1) if columns else np.zeros((len(steps), 0))
    return Table(np.asarray(steps, dtype=np.int64), {k: i for i, k in enumerate(columns)}, values, values, values)
