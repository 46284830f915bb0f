"""train-mode-in-evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.feed import Evaluation
from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

SHOWN = 3


@dataclass(frozen=True)
class TrainModeInEvaluation(Rule):
    """The model is evaluated in training mode, with layers that then do something else.

    ## What it detects
    Passes without gradients that the script evaluates with (it calls a loss on their output, or a line or function that
    leads there speaks of an evaluation), nearly all made while dropout or normalisation layers of the model were in
    training mode.
    ## Why it matters
    Dropout makes the figures worse and random; batch normalisation uses the statistics of the evaluation batch, so that
    an example's result depends on its neighbours, and lets the running ones follow the evaluation data.
    ## What else looks like this
    Monte-Carlo dropout passes the same batch many times: info. Passes within the training itself (a generator, a
    teacher, a rollout) and passes that refresh running statistics evaluate nothing: not reported. Models without
    dropout and batch normalisation are the same in both modes.
    ## What to do
    Call `model.eval()` before the evaluation and `model.train()` after it.
    """

    name = "train-mode-in-evaluation"
    boundary = Boundary.EVALUATION
    explains = ("train-eval-gap", "nondeterministic-step")
    change = "Call model.eval() before these passes, and model.train() before training goes on."
    verify = "Run again: evaluating twice gives the same figure."
    references = ("https://docs.pytorch.org/docs/stable/notes/autograd.html#evaluation-mode-nn-module-eval",)

    share: float = threshold(0.9, unit="of the passes", why="a script that forgets the mode forgets it always")
    again: float = threshold(0.5, unit="of the passes", why="the same batch again and again is done on purpose")

    def check(self, run: Run) -> Iterator[Outcome]:
        evaluations = [e for e in run.evaluations if e.named or e.losses]
        if not evaluations:
            yield self.skipped("no evaluation was seen")
            return
        wrong = [e for e in evaluations if e.active and e.training >= self.share * e.passes]
        yield from map(self._found, wrong)
        if not wrong:
            yield self.passed(f"{len(evaluations)} evaluations ran in evaluation mode, or of layers that have no mode")

    def _found(self, e: Evaluation) -> Outcome:
        deliberate = e.again >= self.again * e.passes
        more = f" and {len(e.active) - SHOWN} more" if len(e.active) > SHOWN else ""
        place = next((p for p in e.places if p.file), Place())
        return self.finding(
            f"the model is evaluated in training mode: {', '.join(e.active[:SHOWN])}{more} "
            f"{'acts' if len(e.active) == 1 else 'act'} as in training",
            Evidence("evaluation passes in training mode", e.training, 0.0, f"of {e.passes}", (e.first, e.last)),
            Evidence("layers in training mode", len(e.active), 0.0),
            severity=Severity.INFO if deliberate else Severity.WARNING,
            place=replace(place, module=e.module or None),
            first_step=e.first,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(source: str = "acc = evaluate(model, x)", **evaluation: Any) -> Run:
            fields: dict[str, Any] = {
                "passes": 20,
                "sweeps": 5,
                "training": 20,
                "active": ("drop1", "bn2"),
                "distinct": 100,
            }
            places = (Place(file="train.py", line=30, source=source),)
            made = Evaluation(**({"index": 0, "places": places, **fields} | evaluation))
            return replace(sample_run(), evaluations=(made,))

        return (
            fires("eval() is forgotten", run(), Severity.WARNING),
            fires("a loss is computed of it", run("out = net(x)", losses=20)),
            silent("near miss: evaluation mode", run(training=0, active=())),
            silent("near miss: a model without such layers", run(active=())),
            silent("near miss: a generator's pass within training", run("fake = gen(z)")),
            silent("near miss: Monte-Carlo dropout", run(again=18)),
            silent("near miss: no evaluation", sample_run()),
        )
