"""data-nonfinite."""

from collections.abc import Iterator
from dataclasses import dataclass

from whyloss.core.finding import Boundary, Outcome, Severity
from whyloss.core.location import BadLeaf, Location, NonFinite, Phase
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.located import look, sample_located
from whyloss.rules.rule import Example, Rule, fires, silent

DATA = ("input", "target", "constant")


@dataclass(frozen=True)
class DataNonfinite(Rule):
    """A batch holds a NaN or an infinity before anything is computed from it.

    ## What it detects
    At the first update whose loss or gradient is not finite the step is played again. If an input, a target or another
    tensor of data was not finite before any call, and that reaches the loss, its rows and columns are named.
    ## Why it matters
    One such row spoils the loss of its whole batch, and one update with it every weight.
    ## What else looks like this
    A mask of 0 and −inf (deliberate, not reported). Data that overflow only when they are cast or squared: then that
    call is named, as nonfinite-forward.
    ## What to do
    Find the examples by their row, and drop, fill or mask them where the data set is made; check for it there.
    """

    name = "data-nonfinite"
    boundary = Boundary.DATA
    explains = ("loss-nonfinite", "loss-hidden-nan", "scaler-collapsed")
    change = "Drop, fill or mask such examples where the data set is made; assert torch.isfinite(x).all() there."
    verify = "Run again: the loss is finite past that update."

    def check(self, run: Run) -> Iterator[Outcome]:
        return look(self, run, _mine, least=Severity.WARNING)

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        values = NonFinite(nan=3, positive=0, negative=0, elements=80, rows=(4,), bad_rows=1, of_rows=8)
        data, buffer = (BadLeaf(role=role, name="x", values=values) for role in ("input", "buffer"))
        text = "The input x holds nan in 3 of 80 elements, row 4 of 8 before any call."
        return (
            fires("NaN in a row of the input", sample_located(Phase.LEAF, leaf=data, text=text), Severity.ERROR),
            silent("near miss: a buffer of the model", sample_located(Phase.LEAF, leaf=buffer)),
            silent("near miss: a call made it", sample_located(Phase.FORWARD)),
            silent("all finite", sample_run()),
        )


def _mine(location: Location, step: int) -> bool:
    return location.phase is Phase.LEAF and location.leaf is not None and location.leaf.role in DATA
