"""batch-leak."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from whyloss.core.feed import Fed, Loader
from whyloss.core.finding import Boundary, Evidence, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.probe import Probe, made, why_not
from whyloss.core.run import Run, Trace
from whyloss.core.sample import flat, sample_run, with_probe
from whyloss.core.step_graph import VIEWS
from whyloss.rules.rule import Example, Rule, fires, silent, threshold

PROBE = "batch-independence"
SEQUENTIAL = ("lstm", "gru", "rnn_tanh", "rnn_relu", "multi_head_attention_forward")


@dataclass(frozen=True)
class BatchLeak(Rule):
    """What is predicted of one example depends on the other examples of its batch.

    ## What it detects
    A recorded step was run again with other values in one example, batch norms on their running statistics and the
    same dropout: predictions of other examples changed. The first call in whose result examples meet is named. The
    targets say along which axis the examples lie.
    ## Why it matters
    The model learns from neighbours that it won't have in use: each batch composed otherwise gives other predictions.
    ## What else looks like this
    Means and deviations over the batch (a batch norm by hand), graphs with an adjacency matrix, and examples that are
    picked by index (mix-up) are meant to. Losses that compare examples come after the prediction. Sequences without a
    batch, or with the time first, look like a batch along their first axis: without a loader of that batch size, or
    examples that come with other neighbours each time, they are an info, as is attention between examples in a run
    that learns.
    ## What to do
    `batch_first=True` where the batch comes first; transpose() or permute() to exchange axes, never view() or
    reshape(); softmax and mean over the axis of the features.
    """

    name = "batch-leak"
    boundary = Boundary.DATA
    explains = (
        "loss-at-baseline",
        "loss-flat",
        "plateau-high",
        "underfitting",
        "train-eval-gap",
        "labels-uninformative",
    )
    explained_by = ("softmax-wrong-axis",)
    change = "Keep the examples apart: check batch_first, and exchange axes with transpose(), not with view()."
    verify = "In eval mode, a batch of one gives the same prediction as the same example within a larger batch."

    effect: float = threshold(1e-3, unit="of the largest change", why="leaks by mistake had above 0.05")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            probes = made(run.probes, trace.index, PROBE)
            if not probes:
                yield self.skipped(why_not(run.probes, trace.index, PROBE))
            elif probes[-1].outcome == "leak" and probes[-1].number("effect") > self.effect:
                yield self._found(run, trace, probes[-1])
            else:
                yield self._passed(probes[-1])

    def _passed(self, probe: Probe) -> Outcome:
        ways = {
            "statistics": "examples meet in statistics over the batch only",
            "indexed": f"examples meet where they are picked by index, in {probe.subject}",
            "leak": f"examples change each other by {probe.number('effect'):.1g} of their own change",
        }
        return self.passed(ways.get(probe.outcome, "another example leaves all other predictions as they are"))

    def _found(self, run: Run, trace: Trace, probe: Probe) -> Outcome:
        size = int(probe.number("examples"))
        fed = run.fed
        loaded = fed is not None and (fed.shuffled or (fed.loader is not None and fed.loader.batch == size))
        severity, why = self._severity(trace, probe, loaded)
        return self.finding(
            f"other values in one example of the batch change what is predicted of others{why}",
            Evidence("change of others", probe.number("effect"), 0, "of the largest change", (probe.step,)),
            Evidence("examples in the batch", size, None, "examples", (probe.step,)),
            Evidence("first call in which they meet", probe.subject or "not found"),
            severity=severity,
            place=probe.place,
            first_step=probe.step,
            certain=severity is Severity.ERROR,
        )

    def _severity(self, trace: Trace, probe: Probe, loaded: bool) -> tuple[Severity, str]:
        poor, along = ends_poorly(trace), bool(probe.number("along") == 1)
        if along:
            positions = int(probe.number("positions"))
            why = f": {probe.subject} takes the examples for a sequence, and the {positions} positions for the batch"
            return (Severity.ERROR if loaded or poor else Severity.WARNING), why
        if probe.number("neighbours") == 1 and loaded:
            return Severity.ERROR, f": {probe.subject} runs along the batch, where neighbours are there by chance"
        if probe.number("sequences") == 1 and not loaded:
            return Severity.INFO, "; the first axis may be the time"
        if probe.subject in VIEWS and (loaded or poor):
            return (Severity.ERROR if poor else Severity.WARNING), f": {probe.subject} mixes their values"
        if probe.subject in ("softmax", "log_softmax") and (loaded or poor):
            return Severity.ERROR, f": {probe.subject} runs over the batch"
        if loaded and poor:
            how = "takes the examples for a sequence" if probe.subject in SEQUENTIAL else "is where they meet"
            return Severity.WARNING, f": {probe.subject or 'a call'} {how}"
        return Severity.INFO, "; where that is meant, leave it"

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        stuck, fine = sample_run(loss=flat(200)), sample_run()
        first = {"examples": 32, "effect": 0.5, "positions": 12, "along": 1, "sequences": 0}
        tabular = first | {"along": 0, "positions": 1}
        return (
            fires(
                "an LSTM without batch_first", with_probe(stuck, PROBE, "leak", first, subject="lstm"), Severity.ERROR
            ),
            fires(
                "the same in a run that learns",
                with_probe(fine, PROBE, "leak", first, subject="lstm"),
                Severity.WARNING,
            ),
            fires(
                "the same, from a loader",
                _loaded(with_probe(fine, PROBE, "leak", first, subject="lstm")),
                Severity.ERROR,
            ),
            fires(
                "a view that mixes examples", with_probe(stuck, PROBE, "leak", tabular, subject="view"), Severity.ERROR
            ),
            silent(
                "near miss: one sequence, a tag for each word",
                with_probe(stuck, PROBE, "leak", tabular, subject="lstm"),
            ),
            fires(
                "a convolution along the rows of a table",
                _loaded(with_probe(fine, PROBE, "leak", tabular | {"neighbours": 1}, subject="conv1d")),
                Severity.ERROR,
            ),
            silent(
                "near miss: a convolution along the moments of one signal",
                with_probe(fine, PROBE, "leak", tabular | {"neighbours": 1}, subject="conv1d"),
            ),
            silent(
                "near miss: attention between examples",
                _loaded(with_probe(fine, PROBE, "leak", tabular, subject="matmul")),
            ),
            silent("near miss: batch norm by hand", with_probe(stuck, PROBE, "statistics", tabular)),
            silent("near miss: mix-up", with_probe(stuck, PROBE, "indexed", tabular, subject="getitem")),
            silent("near miss: independent", with_probe(stuck, PROBE, "independent", {"examples": 32})),
        )


def _loaded(run: Run) -> Run:
    return replace(run, fed=Fed(passes=200, examples=6400, distinct=640, size=32, loader=Loader(batch=32)))
