"""loss-diverging."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.levels import alternates, baselines, own_loss, says_nothing
from whyloss.core.progress import ERRORS, fell
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import falling, flat, sample_run
from whyloss.core.series import Fall, Series, fall
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LossDiverging(Rule):
    """The training loss ends far above where it began.

    ## What it detects
    The median loss of the last tenth of the updates is at `factor` times the first loss, and at `factor` times the loss
    of a constant prediction, beyond noise, and is not on its way down. Where the loss of a constant prediction is not
    known, or another optimizer plays against this one, `unknown` times the first. Only finite losses are looked at.
    ## Why it matters
    The updates make the model worse than no model. Further training will not bring it back.
    ## What else looks like this
    Adversarial losses, which move against each other; policy gradients, which take both signs; a bump after a warm
    restart, which comes down again; Q-learning, whose targets and loss grow together; a spike. None is reported.
    ## What to do
    Look at the causes that could explain it: the rate, gradients that pile up, the sign of the loss, the start.
    """

    name = "loss-diverging"
    boundary = Boundary.CURVE
    symptom = True
    explained_by = ("lr-too-high", "gradient-not-cleared", "exploding-gradient", "loss-off-baseline", "loss-sign")
    change = "Find the cause first: try a rate ten times smaller, and check zero_grad and the sign of the loss."
    verify = "Run again: loss/train ends below where it began."

    updates: int = threshold(20, unit="updates", why="the first steps of healthy runs with momentum may go up")
    factor: float = threshold(1.2, unit="times the start", why="a fifth above a constant prediction is no noise")
    unknown: float = threshold(30.0, unit="times the start", why="the loss of healthy Q-learning rises about tenfold")
    hopeless: float = threshold(100.0, unit="times the start", why="no healthy run of the tuning set ended near it")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            own = own_loss(trace)
            loss = own if own is not None else trace.loss
            result = None if loss is None or trace.updates < self.updates else fall(loss)
            reason = says_nothing(run, trace) if not alternates(run, trace) else ""
            if loss is None or result is None or reason:
                yield self.skipped(reason or f"needs the loss of {self.updates} updates, six of them finite")
                continue
            yield self._judge(run, trace, loss.finite, result)

    def _judge(self, run: Run, trace: Trace, loss: Series, result: Fall) -> Outcome:
        levels = baselines(trace)
        known = bool(levels) and not alternates(run, trace)
        start = max(min(loss.first, result.start), levels[0].value if known else 0.0)
        limit = (self.factor if known else self.unknown) * start
        rise = result.end - start
        if start <= 0.0 or result.end <= limit or rise <= ERRORS * result.error or _falling(loss):
            return self.passed(f"the loss began at {loss.first:.4g} and ended at {result.end:.4g}")
        above = f", above {levels[0].name} ({levels[0].value:.4g})" if known else ""
        return self.finding(
            f"the loss rose from {loss.first:.4g} to {result.end:.4g} over {trace.updates} updates{above}",
            Evidence("loss level at the end", result.end, limit, "", (0, int(loss.steps[-1]))),
            severity=Severity.ERROR if result.end > self.hopeless * start else Severity.WARNING,
            place=trace.loss_place,
            first_step=int(loss.steps[np.argmax(loss.values > limit)]),
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps = np.arange(200)
        bump = np.r_[falling(150), falling(50, 3.0, 0.3)]
        huber = (Objective(kind="smooth_l1_loss"),)
        blown = np.r_[np.geomspace(2.0, 1e20, 40), np.full(40, np.nan)]
        return (
            fires("grows by a tenth at each update", sample_run(loss=2.3 * 1.1**steps), Severity.ERROR),
            fires("learned, then ends at twice ln 10", sample_run(loss=np.r_[falling(100), flat(100, 4.6)])),
            fires("grows to 1e20, then NaN", sample_run(loss=blown), Severity.ERROR),
            silent("near miss: a noisy level around ln 10", sample_run(loss=flat(200, 2.4, 0.1))),
            silent("near miss: a warm restart's bump", sample_run(loss=bump)),
            silent("near miss: forgets, but ends below ln 10", sample_run(loss=np.r_[falling(100), flat(100, 2.0)])),
            silent("near miss: far above at first, still falling", sample_run(loss=falling(200, 90.0, 4.0))),
            silent("near miss: one huge loss", sample_run(loss=np.where(steps == 100, 1e6, falling(200)))),
            silent("near miss: Q-learning", sample_run(loss=falling(200, 0.05, 0.5), objectives=huber)),
            silent("near miss: a policy gradient", sample_run(loss=np.sin(steps) * steps, objectives=())),
        )


def _falling(loss: Series) -> bool:
    """Whether its second half goes down."""
    half = fall(loss.since(int(loss.steps[len(loss) // 2])))
    return half is not None and fell(half)
