"""dropout-always-on."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.feed import Draw, Evaluation
from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class DropoutAlwaysOn(Rule):
    """Dropout goes on dropping in evaluation mode.

    ## What it detects
    A dropout call that drops while the model is in evaluation mode: `F.dropout(x, p)` without `training=self.training`,
    `scaled_dot_product_attention(dropout_p=…)`, or a dropout module that the model does not know as its own.
    ## Why it matters
    Every prediction has random parts missing: figures are worse than the model, and differ from call to call.
    ## What else looks like this
    Monte-Carlo dropout: the script switches dropout modules on by hand, or passes the same batch many times. Info.
    ## What to do
    Use an `nn.Dropout` module that is an attribute of the model, or give the call `training=self.training`.
    """

    name = "dropout-always-on"
    boundary = Boundary.EVALUATION
    explains = ("train-eval-gap", "nondeterministic-step")
    change = "Give the call training=self.training, or use an nn.Dropout that is an attribute of the model."
    verify = "Run again: two evaluations of one batch give the same."

    again: float = threshold(0.5, unit="of the passes", why="the same batch again and again is done on purpose")

    def check(self, run: Run) -> Iterator[Outcome]:
        looked = [e for e in run.evaluations if e.looked_for_draws]
        if not looked:
            yield self.skipped("no pass in evaluation mode could be searched for dropout")
            return
        found = [(e, draw) for e in looked for draw in e.draws]
        if found:
            lines = len({draw.place for _, draw in found})
            yield self._found(*found[0], lines)
        else:
            yield self.passed(f"no dropout in {sum(e.looked_for_draws for e in looked)} passes in evaluation mode")

    def _found(self, e: Evaluation, draw: Draw, lines: int) -> Outcome:
        by_hand = draw.own_mode and bool(e.deliberate)
        deliberate = by_hand or e.again >= self.again * e.passes
        how = "a dropout module that the model does not hold" if draw.own_mode else draw.call
        if by_hand:
            how = f"the dropout module {e.deliberate[0]}"
        return self.finding(
            f"{how} drops {draw.p:.0%} of the values in evaluation mode"
            + (f", and so do calls at {lines - 1} more lines" if lines > 1 else ""),
            Evidence("share dropped in evaluation mode", draw.p, 0.0, "", (e.first,)),
            severity=Severity.INFO if deliberate else Severity.WARNING,
            place=replace(draw.place, op=draw.call),
            first_step=e.first,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(own_mode: bool = False, **evaluation: Any) -> Run:
            place = Place(file="net.py", line=12, source="h = F.dropout(h, 0.5)")
            draws = (Draw(call="dropout", own_mode=own_mode, place=place),)
            fields: dict[str, Any] = {"index": 0, "passes": 20, "distinct": 100, "looked_for_draws": 2, "draws": draws}
            return replace(sample_run(), evaluations=(Evaluation(**(fields | evaluation)),))

        return (
            fires("F.dropout without its training argument", run(), Severity.WARNING),
            fires("a dropout module in a plain list", run(own_mode=True)),
            silent("near miss: no dropout", run(draws=())),
            silent("near miss: dropout modules switched on by hand", run(own_mode=True, deliberate=("drop",))),
            silent("near miss: the same batch twenty times", run(again=19)),
            silent("near miss: never looked", run(looked_for_draws=0, draws=())),
        )
