"""eval-mode-in-training."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.initialisation import looks_loaded
from whyloss.core.modes import ModeCall, mode_calls
from whyloss.core.reach import values
from whyloss.core.run import Trace
from whyloss.core.sample import sample_tensors
from whyloss.core.sample_graph import F, SampleGraph
from whyloss.core.step_graph import StepGraph
from whyloss.rules.recorded import place_of, sample_recorded
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

SHOWN = 3


@dataclass(frozen=True)
class EvalModeInTraining(Rule):
    """The model is trained in evaluation mode: its dropout does not drop, its batch normalisation does not normalise.

    ## What it detects
    Updates that were made while the model was in evaluation mode, `share` of all and more, where a recorded step has
    dropout or batch normalisation, which do something else then.
    ## Why it matters
    Dropout regularises nothing. Batch normalisation uses running statistics that no batch updates: in a fresh network
    they stay at mean 0 and variance 1, so that it normalises nothing; later they no longer describe what comes in.
    ## What else looks like this
    Normalisation layers kept in evaluation mode on purpose while the model itself is in training mode; a loaded model
    that is fine-tuned in evaluation mode; inputs or prompts that are trained in front of a model that is not. These
    are an info, or nothing. Models without such layers are the same in both modes.
    ## What to do
    Call `model.train()` before the training loop, and again after every evaluation: `model.eval()` stays in force.
    """

    name = "eval-mode-in-training"
    boundary = Boundary.FORWARD
    explains = (
        *("train-eval-gap", "overfitting", "plateau-high", "underfitting", "not-converged", "loss-flat"),
        *("loss-at-baseline", "vanishing-gradient", "exploding-gradient", "activation-collapse"),
        *("activation-explosion", "lr-too-low", "loss-off-baseline"),
    )
    change = "Call model.train() before the training loop, and again after each evaluation."
    verify = "Run again: the signal `training` is 1 at every update."
    references = ("https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",)

    share: float = threshold(
        0.2, unit="of the updates", why="a forgotten train() lasts to the end of the epoch or of the run"
    )
    most: float = threshold(
        0.5, unit="of the model's values", why="where less of it is trained, the rest is kept as it is on purpose"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        mode = trace.signal("training")
        calls = [(g, call) for g in trace.graphs for call in mode_calls(g)]
        if mode is None or not trace.graphs:
            yield self.skipped("needs the mode at each update, and a recorded step")
            return
        names = tuple(dict.fromkeys(call.name for _, call in calls))
        off = float(1 - np.mean(mode.values))
        kept = [call for g, call in calls if g.training and call.norm and not call.on]
        if names and off >= self.share and self._meant_to_train(trace):
            first = int(mode.steps[np.flatnonzero(mode.low < 1)[0]])
            yield self._found(trace, calls, names, off, first)
        elif kept:
            yield self._norms_kept(kept)
        else:
            what = f"{len(names)} layers that have a mode" if names else "no layer that has a mode"
            yield self.passed(f"{what}; {off:.0%} of the updates in evaluation mode")

    def _meant_to_train(self, trace: Trace) -> bool:
        model = [t for t in trace.tensors if t.in_model and t.kind]
        return values(t for t in model if t in trace.trained) >= self.most * max(values(model), 1)

    def _found(
        self, trace: Trace, calls: list[tuple[StepGraph, ModeCall]], names: tuple[str, ...], off: float, first: int
    ) -> Finding:
        shown = ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
        loaded = first == 0 and looks_loaded(trace.trained)
        since = f"from update {first} on" if first else "from the first update on"
        what = [
            word
            for word, norm in (("dropout does not drop", False), ("batch normalisation uses running statistics", True))
            if any(call.norm is norm for _, call in calls)
        ]
        call = next((c for g, c in calls if not g.training), calls[0][1])
        return self.finding(
            f"{off:.0%} of the updates are made in evaluation mode, {since}: {' and '.join(what)} in {shown}"
            + ("; the weights look trained, as of a model that is fine-tuned like that on purpose" if loaded else ""),
            Evidence("updates in evaluation mode", off, 0.0, "of all", (first, trace.updates - 1)),
            Evidence("layers that have a mode", len(names), 0.0),
            severity=Severity.INFO if loaded else Severity.WARNING,
            place=replace(place_of(call.op), module=call.op.module or None),
            first_step=first,
            certain=True,
        )

    def _norms_kept(self, kept: list[ModeCall]) -> Finding:
        names = tuple(dict.fromkeys(call.name for call in kept))
        return self.finding(
            f"batch normalisation in {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''} uses its "
            "running statistics while the model is in training mode",
            Evidence("normalisation layers in evaluation mode", len(names), 0.0),
            severity=Severity.INFO,
            place=place_of(kept[0].op),
            certain=True,
            change="Nothing, where the layers are frozen on purpose.",
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(60)
        off, later, now_and_then = (
            {"training": 0.0},
            {"training": (steps < 20) * 1.0},
            {"training": (steps != 30) * 1.0},
        )
        fresh, on, plain = _step(on=False), _step(on=True), _step(on=False, layers=False)
        kept = replace(fresh, training=True)
        weights = [t.name for t in sample_tensors()]
        loaded = {n: {"std": 0.3, "largest": 1.7} for n in weights if n.endswith("weight")}
        spread = {"fc1.bias": {"kind": "BatchNorm1d", "std": 0.15, "mean": 1.0, "largest": 1.3}}
        inputs = {n: {"trainable": False, "in_optimizer": False} for n in weights[:4]}
        return (
            fires("eval() before the training", sample_recorded(fresh, signals=off), Severity.WARNING),
            fires("not back in training mode after an evaluation", sample_recorded(on, on, on, signals=later)),
            fires("seen at the first update", sample_recorded(fresh, signals=off, updates=1), Severity.WARNING),
            silent("near miss: training mode", sample_recorded(on)),
            silent("near miss: no layer that has a mode", sample_recorded(plain, signals=off)),
            silent("near miss: normalisation layers kept as they are", sample_recorded(kept)),
            silent("near miss: a loaded model", sample_recorded(fresh, signals=off, changed=loaded)),
            silent("near miss: a loaded normalisation", sample_recorded(fresh, signals=off, changed=spread)),
            silent("near miss: only the head is trained", sample_recorded(fresh, signals=off, changed=inputs)),
            silent("near miss: one update", sample_recorded(on, signals=now_and_then)),
        )


def _step(*, on: bool, layers: bool = True) -> StepGraph:
    step = SampleGraph()
    h = step.linear(step.leaf("input", "x", 8, 4), "fc1", 6)
    if layers:
        h = step.like(F + "batch_norm", h, module="bn", arguments={"training": on})
        h = step.like(F + "dropout", h, module="drop", arguments={"p": 0.5, "training": on})
    out = step.linear(h, "head", 6)
    return step.graph(step.loss("mse_loss", out, step.leaf("target", "", 8, 6)), training=on)
