"""symmetric-init."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.initialisation import gates
from whyloss.core.run import Tensor, Trace
from whyloss.core.sample import sample_run
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class SymmetricInit(Rule):
    """The units of a hidden layer start identical and stay identical: the layer is one unit wide.

    ## What it detects
    All rows of a weight that another layer follows (of each gate, if it is a recurrent one) are equal before updates 0,
    1 and 2, although it moved in between.
    Or a hidden weight starts filled with one number, not 0, and never has a gradient, as behind saturated units.
    Also a network that can't even move: the rows of all its weights, of two and more, are equal, and their gradient is
    exactly 0 at every update. Two factors in a network that moves are zero-gradient's.
    ## Why it matters
    Equal units get equal gradients, so no number of updates parts them: however wide, the layer computes one number.
    ## What else looks like this
    A last layer, a low-rank factor or the end of a residual branch that starts at 0: its rows part at the first update
    that moves it. A constant weight that nothing has moved yet, as in a warm-up from rate 0. Neither is reported.
    ## What to do
    Initialise weights at random (PyTorch's default does). Look for `constant_`, `zeros_`, `ones_` or `fill_` in the
    initialisation, and for assignments to `p.data` in a loop over all parameters.
    """

    name = "symmetric-init"
    boundary = Boundary.FORWARD
    explains = (
        *("loss-flat", "loss-at-baseline", "zero-gradient", "vanishing-gradient", "dead-relu"),
        *("plateau-high", "underfitting", "lr-too-low", "saturated-activation", "loss-off-baseline"),
    )
    change = "Initialise the weights at random (Kaiming or Xavier); only biases and a last layer may start constant."
    verify = "Run again: rows/spread of every hidden weight is above 0 before update 0."

    looks: int = threshold(3, unit="looks", why="a zero last layer or factor parts at the first update that moves it")
    rounding: float = threshold(1e-6, unit="of the norm", why="eight roundings of float32, from sums in another order")
    share: float = threshold(
        1e-3, unit="of the way", why="rows with gradients of their own part by as much as they move"
    )

    def check_trace(self, trace: Trace) -> Iterator[Outcome]:
        weights = [t for t in trace.trained if len(t.shape) > 1 and t.shape[0] > 1]
        seen = [t for t in weights if len(trace.signal(f"rows/spread[{t.name}]") or ()) >= self.looks]
        if not seen:
            yield self.skipped(f"needs {self.looks} looks at the rows of a weight that is trained")
            return
        followed = [t for t in seen if _followed(trace, t)]
        moving = [t for t in followed if self._moves_as_one(trace, t) or _constant(trace, t)]
        found = sorted(moving or self._stuck(trace, seen), key=trace.depth)
        if not found:
            yield self.passed(f"the rows of {len(seen)} weights differ, or part when they move")
            return
        first, spread = found[0], trace.signal(f"rows/spread[{found[0].name}]")
        assert spread is not None
        how = "and their gradient is exactly 0" if _never_pulled(trace, first) else "although it moves"
        more = f", as are those of {len(found) - 1} more" if len(found) > 1 else ""
        yield self.finding(
            f"the {first.shape[0] // gates(first)} units of {first.name} are identical at updates 0 to "
            f"{spread.steps[-1]} {how}{more}",
            Evidence("difference of its rows, ‖W − row 0‖/‖W‖", float(spread.high.max()), self.rounding, "", (0, 1, 2)),
            Evidence("weights with identical rows", len(found), 0, "weights"),
            severity=Severity.ERROR,
            place=trace.place_of(first),
            certain=True,
        )

    def _moves_as_one(self, trace: Trace, t: Tensor) -> bool:
        """Rows equal within rounding at the first looks, and ever since within a small share of the way moved."""
        spread = trace.signal(f"rows/spread[{t.name}]")
        way, norm = trace.signal(f"update/norm[{t.name}]"), trace.signal(f"weight/norm[{t.name}]")
        if spread is None or way is None or norm is None:
            return False
        moved = np.r_[0.0, np.cumsum(way.values)][np.searchsorted(way.steps, spread.steps)]
        at = norm.values[np.maximum(np.searchsorted(norm.steps, spread.steps, "right") - 1, 0)]
        with np.errstate(invalid="ignore", over="ignore"):
            reach = self.share * moved / np.where(at > 0, at, np.nan)
        equal = (moved == 0) | (spread.high == 0) | (spread.high <= reach)
        start = bool(np.all(spread.high[: self.looks] <= self.rounding))
        return start and bool(equal.all() and (moved > 0).sum() >= self.looks - 1)

    def _stuck(self, trace: Trace, seen: list[Tensor]) -> list[Tensor]:
        """All weights, where there are two and more, none ever had a gradient other than 0, and each has equal rows."""
        still = [t for t in seen if _never_pulled(trace, t)]
        spreads = [trace.signal(f"rows/spread[{t.name}]") for t in still]
        equal = all(s is not None and np.all(s.high == 0) for s in spreads)
        return still if equal and 1 < len(still) == len(seen) else []

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        steps, layers = np.arange(200.0), ("fc1", "fc2", "head")
        pulls = [f"{s}[{n}.{p}]" for s in ("grad/norm", "update/norm") for n in layers for p in ("weight", "bias")]
        still, rows = dict.fromkeys(pulls, 0.0), [f"rows/spread[{n}.weight]" for n in layers]
        same, parts = dict.fromkeys(rows, 0.0), np.minimum(steps, 1.0) * 1.2
        bias = {"grad/norm[head.bias]": 0.1, "update/norm[head.bias]": 1e-3}
        moves = {rows[2]: 1.3, "grad/norm[head.weight]": 0.1, "update/norm[head.weight]": 1e-3} | bias
        warm = {"update/norm[fc1.weight]": np.minimum(steps // 10, 1.0) * 1e-3, rows[0]: np.minimum(steps // 11, 1.0)}
        late = {
            "update/norm[fc1.weight]": np.minimum(steps, 1.0) * 1e-3,
            "grad/norm[fc1.weight]": np.minimum(steps, 1.0),
        }
        filled = {"fc1.weight": {"std": 0.0, "largest": 1.0}}
        ones = {rows[0]: 0.0, "grad/norm[fc1.weight]": 0.0, "update/norm[fc1.weight]": 0.0}
        slow = {rows[0]: 1e-7 * steps, "update/norm[fc1.weight]": 1e-6}
        return (
            fires("rows of two layers stay equal", sample_run(signals={rows[0]: 0.0, rows[1]: 1e-8}), Severity.ERROR),
            fires(
                "a layer that the first update did not move", sample_run(signals={rows[0]: 0.0} | late), Severity.ERROR
            ),
            fires("one hidden layer", sample_run(signals={rows[0]: 0.0}), Severity.ERROR),
            fires("four updates are enough", sample_run(4, signals={rows[0]: 0.0}), Severity.ERROR),
            fires("all zero: only the last bias moves", sample_run(signals=still | same | bias), Severity.ERROR),
            fires("all ones, behind which tanh is flat", sample_run(signals=ones, changed=filled), Severity.ERROR),
            silent("near miss: zero-initialised last layer", sample_run(signals={rows[2]: parts})),
            silent("near miss: low-rank factors that start at 0", sample_run(signals={rows[0]: parts, rows[1]: parts})),
            silent("near miss: zero branch, rate 0 for ten updates", sample_run(signals=warm)),
            silent("near miss: last layer with tied targets", sample_run(signals={rows[2]: 0.0})),
            silent("near miss: constant weight that moves by 1e-7 an update", sample_run(signals=slow)),
            silent("near miss: zero branches, gradients cleared", sample_run(signals=still | same | {rows[2]: 1.3})),
            silent("near miss: two zero factors in a network that moves", sample_run(signals=still | same | moves)),
        )


def _followed(trace: Trace, t: Tensor) -> bool:
    """Whether a weight comes after it in the forward pass, or in the order of the tensors where that is not known."""
    if trace.depth(t) >= 0:
        return any(trace.depth(o) > trace.depth(t) for o in trace.tensors if len(o.shape) > 1)
    return any(len(o.shape) > 1 for o in trace.tensors[trace.tensors.index(t) + 1 :])


def _constant(trace: Trace, t: Tensor) -> bool:
    """Filled with one number that is not 0, and still so after updates of others: its units are saturated, or dead."""
    spread = trace.signal(f"rows/spread[{t.name}]")
    filled = t.std == 0.0 and bool(t.largest) and spread is not None and bool(np.all(spread.high == 0))
    return filled and _never_pulled(trace, t)


def _never_pulled(trace: Trace, t: Tensor) -> bool:
    gradient = trace.signal(f"grad/norm[{t.name}]")
    return gradient is not None and len(gradient) > 3 and bool(np.all(gradient.high == 0))
