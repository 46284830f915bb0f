"""ema-buffers."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from whyloss.core.copies import Copy
from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.run import Run
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class EmaBuffers(Rule):
    """The averaged copy of the model follows its weights, and not the running statistics of its normalisation.

    ## What it detects
    A second model of the same class, in no optimizer, whose parameters change from look to look and stay near those of
    the model that is trained, while its running means and variances never change and the trained model's do. An info
    where it was not seen to be evaluated.
    ## Why it matters
    In evaluation mode each batch normalisation of the copy subtracts and divides by numbers of a network at its start.
    The average looks far worse than the model, though its weights are fine.
    ## What else looks like this
    A teacher or target network in training mode, which updates its own statistics; copies made by load_state_dict;
    torch's AveragedModel followed by update_bn, or with use_buffers=True; frozen teachers and snapshots, which do not
    change at all. None of them is reported.
    ## What to do
    Copy the buffers, too: `for a, b in zip(ema.buffers(), model.buffers()): a.copy_(b)`, or AveragedModel(model,
    use_buffers=True), or torch.optim.swa_utils.update_bn(loader, ema) before it is evaluated.
    """

    name = "ema-buffers"
    boundary = Boundary.EVALUATION
    explains = ("train-eval-gap",)
    change = "Copy the buffers of the model into the average at each update, or run update_bn before it is evaluated."
    verify = "Run again: the running means of the average are near the model's, and so is its evaluation."
    references = ("https://docs.pytorch.org/docs/stable/optim.html#weight-averaging-swa-and-ema",)

    near: float = threshold(
        0.7, unit="of the model's norm", why="averages lay below 0.5; models from different seeds are 1.4 apart"
    )
    moved: int = threshold(1, unit="looks", why="a copy that never changes is a teacher or a snapshot")

    def check(self, run: Run) -> Iterator[Outcome]:
        averages = [c for c in run.copies if self._average(c)]
        yield from (self._found(c) for c in averages if not c.buffers_moved and c.live_buffers_moved)
        if not run.copies:
            yield self.skipped("no second model of the trained one's class was seen at two looks")
        elif not any(not c.buffers_moved and c.live_buffers_moved for c in averages):
            what = "their running statistics move with it" if averages else "none of them an average of it"
            yield self.passed(f"{len(run.copies)} copies of the model: {what}")

    def _average(self, c: Copy) -> bool:
        return c.moved >= self.moved and c.distance is not None and 0 < c.distance <= self.near and c.buffers > 0

    def _found(self, c: Copy) -> Finding:
        seen = f"evaluated {c.evaluated} times" if c.evaluated else "not seen to be evaluated"
        return self.finding(
            f"a second {c.model} follows the weights of the one that is trained, while its {c.buffers} running means "
            f"and variances never change; it was {seen}",
            Evidence("its parameters changed", c.moved, None, f"of {c.looks - 1} times looked", (c.first, c.last)),
            Evidence("‖copy − model‖ / ‖model‖ at the last look", c.distance or 0.0, self.near),
            Evidence("its running statistics that changed", 0, c.buffers, "while the model's did"),
            severity=Severity.WARNING if c.evaluated else Severity.INFO,
            first_step=c.first,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(**changed: Any) -> Run:
            fields: dict[str, Any] = {"trace": 0, "model": "Net", "first": 20, "last": 128, "looks": 4, "moved": 3}
            more = {"buffers": 4, "live_buffers_moved": True, "distance": 0.1, "evaluated": 9}
            return replace(sample_run(), copies=(Copy(**(fields | more | changed)),))

        return (
            fires("an average that is evaluated", run(), Severity.WARNING),
            silent("near miss: it is never evaluated", run(evaluated=0)),
            silent("near miss: its statistics move", run(buffers_moved=True)),
            silent("near miss: a frozen teacher", run(moved=0)),
            silent("near miss: another model of the class", run(distance=1.4)),
            silent("near miss: no running statistics", run(buffers=0)),
            silent("near miss: the model's do not move either", run(live_buffers_moved=False)),
            silent("near miss: an exact copy", run(distance=0.0)),
        )
