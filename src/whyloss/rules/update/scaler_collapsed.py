"""scaler-collapsed."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Place, Severity
from whyloss.core.run import Facts, Mask, Run, Trace
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class _Attempts:
    """The updates that an optimizer was to make, in order, and the scale at the last one that was left out."""

    left_out: Mask
    scale: float | None

    @property
    def at_the_end(self) -> int:
        """How many of the last ones in a row were left out."""
        made = np.flatnonzero(~self.left_out)
        return len(self.left_out) - (int(made[-1]) + 1 if len(made) else 0)


@dataclass(frozen=True)
class ScalerCollapsed(Rule):
    """The loss scaler leaves the updates out, and its scale has fallen so far that the scale is not the reason.

    ## What it detects
    Updates that a `GradScaler` left out because a gradient was not finite: the last ones all, at a scale that has come
    down to 1 and less. Or most of the updates in the second half of a run.
    ## Why it matters
    Nothing is learned any more, and nothing says so: the loop goes on, the loss may even look sane.
    ## What else looks like this
    The first few updates left out while a high scale comes down to where it fits, and one now and then when the scaler
    tries a higher one: that is how it works. Not reported.
    ## What to do
    Look for the call that makes the gradient NaN or infinite at any scale: this report locates it where it could.
    """

    name = "scaler-collapsed"
    boundary = Boundary.UPDATE
    explains = (
        *("loss-flat", "loss-at-baseline", "update-not-landing", "step-missing", "not-converged", "plateau-high"),
        "underfitting",
    )
    explained_by = ("nonfinite-forward", "nonfinite-backward", "data-nonfinite", "gradient-overflow")
    change = "Find the call whose gradient is not finite and mend it there; the scale is not the reason."
    verify = "Run again: no update is left out but a few at the start, and the scale stays above 1."

    row: int = threshold(8, unit="updates", why="one bad batch leaves out one update, not eight in a row at scale 1")
    scale: float = threshold(1.0, unit="times", why="at 1 the gradients are no larger than without any scaler")
    share: float = threshold(
        0.6, unit="of the updates", why="a scaler that grows at each update leaves out every other one at the most"
    )
    least: int = threshold(60, unit="updates", why="a scale of 2^60 has come down to 1 by then")

    def check(self, run: Run) -> Iterator[Outcome]:
        traces = {t.index: t for t in run.traces}
        indices = sorted({i for i, _ in run.skipped_updates} | {i for i, t in traces.items() if t.signal("found-inf")})
        if not indices:
            yield self.passed("no update was left out by a loss scaler")
        for index in indices:
            yield self._judge(_place(run, traces.get(index)), _attempts(run, index, traces.get(index)))

    def _judge(self, place: Place, tries: _Attempts) -> Outcome:
        n, skipped, end = len(tries.left_out), int(tries.left_out.sum()), tries.at_the_end
        low = tries.scale is not None and tries.scale <= self.scale
        later = tries.left_out[n // 2 :]
        often = n >= self.least and len(later) > 0 and float(later.mean()) >= self.share
        if not (end >= self.row and low) and not often:
            return self.passed(f"a loss scaler left out {skipped} of {n} updates, {end} of them at the end")
        now = "" if tries.scale is None else f" at a scale that has fallen to {tries.scale:.3g}"
        which = f"the last {end} of {n} updates" if end >= self.row else f"{skipped} of {n} updates"
        return self.finding(
            f"the loss scaler left out {which}{now}: their gradients were not finite"
            + (", whatever the scale" if low else ""),
            Evidence("updates left out", skipped, 0, f"of {n}"),
            Evidence("left out in a row at the end", end, self.row, "updates"),
            *([Evidence("scale of the loss", tries.scale, self.scale, "times")] if tries.scale is not None else []),
            severity=Severity.ERROR if low and end >= self.row else Severity.WARNING,
            place=place,
            first_step=n - end,
            certain=low and end >= self.row,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        first = tuple(2.0 ** (16 - k) for k in range(60))
        none = Run(
            skipped_updates=((0, 0),) * 60, skipped_scales=first, facts=Facts(end="finished")
        )  # no update was ever made
        later = replace(sample_run(), skipped_updates=((0, 200),) * 40, skipped_scales=first[:40])
        most = tuple((0, s) for s in range(40) for _ in range(3))
        half = replace(sample_run(40), skipped_updates=most, skipped_scales=(4096.0,) * len(most))
        high = tuple(2.0 ** (40 - k) for k in range(26))
        early = replace(sample_run(), skipped_updates=((0, 0),) * 26, skipped_scales=high)
        growing = replace(sample_run(), skipped_updates=((0, 50), (0, 150)), skipped_scales=(131072.0, 131072.0))
        fused = sample_run(signals={"found-inf": np.where(np.arange(200) < 150, 0.0, 1.0), "scale": 0.5})
        return (
            fires("no update is ever made", none, Severity.ERROR),
            fires("none is made after 200", later, Severity.ERROR),
            fires("a fused optimizer, none is made after 150", fused, Severity.ERROR),
            fires("three of four updates", half, Severity.WARNING),
            silent("near miss: the first 26, from a scale of 2^40", early),
            silent("near miss: one whenever the scale grows", growing),
            silent("near miss: no scaler", sample_run()),
        )


def _attempts(run: Run, index: int, trace: Trace | None) -> _Attempts:
    """A step() that was left out has the number of the one that was made after it."""
    scales = run.skipped_scales or (None,) * len(run.skipped_updates)
    skips = [(step, scale) for (i, step), scale in zip(run.skipped_updates, scales, strict=False) if i == index]
    updates = trace.updates if trace is not None else 0
    found = trace.signal("found-inf") if trace is not None else None
    made = np.zeros(updates, dtype=bool)
    if found is not None:
        made[found.steps[found.high > 0.0]] = True
    numbers = np.r_[np.arange(updates), np.array([s for s, _ in skips]) - 0.5]
    flags = np.r_[made, np.ones(len(skips), dtype=bool)]
    scale = skips[-1][1] if skips else None
    current = trace.signal("scale") if trace is not None else None
    if scale is None and current is not None:
        scale = current.last
    return _Attempts(flags[np.argsort(numbers, kind="stable")].astype(bool), scale)


def _place(run: Run, trace: Trace | None) -> Place:
    """Where the step is called; where none was ever made, the last backward pass."""
    waiting = run.pending[-1].place if run.pending else Place()
    return trace.step_place if trace is not None and trace.step_place.file else waiting
