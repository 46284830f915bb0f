"""label-range."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import ArrayLike

from whyloss.core.finding import Boundary, Evidence, Finding, Outcome, Severity
from whyloss.core.learning import ends_poorly
from whyloss.core.levels import CROSS_ENTROPY, objective
from whyloss.core.run import Objective, Run, Trace
from whyloss.core.sample import flat, sample_run
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import Leaf, Op, StepGraph, Value
from whyloss.rules.rule import Example, Rule, fires, silent, threshold


@dataclass(frozen=True)
class LabelRange(Rule):
    """The labels do not fit the outputs: they start at 1, or one of them is ignored.

    ## What it detects
    For one label an example: that `ignore_index` is a label which occurs, so that nothing is learned of its class; or
    that all labels from 1 up to the last output occur and 0 never does, in many labels of a run that ends poorly.
    Outputs that no label ever names are else an info; of labels in more than one axis, only with the last output.
    ## Why it matters
    A class that is ignored is never predicted. Labels that start at 1 mean that predictions are off by one wherever
    the script turns them into names, and that one output only ever learns to be silent.
    ## What else looks like this
    Token sequences whose padding is 0 and ignored, or never a target: labels in more than one axis are not judged.
    Labels that are one of the input's own tokens. A large pretrained head of which few classes are used: info.
    ## What to do
    Number the classes from 0 (`labels - 1`), give the head as many outputs, and leave `ignore_index` at -100.
    """

    name = "label-range"
    boundary = Boundary.DATA
    change = "Number the labels 0 … C-1, give the head C outputs, and ignore only what is no class (-100)."
    verify = "Run again: every output has labels, and every label an output."

    labels: int = threshold(50, unit="labels a class", why="a class of 1 % is seen by then but for one case in 10 000")
    most: int = threshold(1000, unit="classes", why="larger heads are vocabularies, whose 0 is mostly reserved")

    def check(self, run: Run) -> Iterator[Outcome]:
        for trace in run.traces:
            op = objective(trace)
            graph = next((g for g in trace.graphs if len(g.loss_ops) == 1), None)
            if op is None or op.kind not in CROSS_ENTROPY or op.classes is None or graph is None:
                yield self.skipped("needs one loss op with class labels, and a recorded step")
            else:
                yield self._ignored(graph) or self._judge(trace, graph, op.classes)

    def _ignored(self, graph: StepGraph) -> Finding | None:
        op = graph.loss_ops[0]
        index = op.arguments.get("ignore_index", -100)
        number = graph.target(op)
        seen = graph.values[number].statistics if number is not None else None
        if not isinstance(index, int) or seen is None or index != 0 or not seen.zeros > 0 or not _one_label_each(graph):
            return None
        return self.finding(
            f"ignore_index is {index}, which is the label of {seen.zeros:.0%} of the examples: their class is never "
            "learned",
            Evidence(f"share of the labels that are {index}", seen.zeros, 0.0),
            severity=Severity.ERROR,
            place=replace(op.place, op=op.name),
            first_step=graph.step,
            certain=True,
        )

    def _judge(self, trace: Trace, graph: StepGraph, classes: int) -> Outcome:
        seen = {part: trace.signal(f"target/{part}") for part in ("lowest", "highest", "classes", "count")}
        lowest, highest, used, count = (int(s.last) if s is not None else -1 for s in seen.values())
        if classes > self.most or count < self.labels * classes:
            return self.skipped(f"needs {self.labels} labels for each of at most {self.most} classes")
        if used == classes:
            return self.passed(f"all {classes} classes occur in {count} labels")
        if not _one_label_each(graph) and highest == classes - 1:
            return self.passed("labels in more than one axis reach the last output: a lower number may be reserved")
        shifted = lowest == 1 and highest == classes - 1 and used == classes - 1 and classes > 2
        shifted = shifted and not _tokens(graph)
        what = "the labels start at 1" if shifted else f"{classes - used} of {classes} outputs have no label"
        return self.finding(
            f"{what}: of {classes} outputs, the labels name {used}, from {lowest} to {highest}",
            Evidence("lowest label", lowest, 0.0, "", tuple(trace.sampled.steps[-1:].tolist())),
            Evidence("highest label", highest, classes - 1),
            Evidence("classes that occur", used, classes, f"in {count} labels"),
            severity=Severity.WARNING if shifted and ends_poorly(trace) else Severity.INFO,
            place=trace.loss_place,
            certain=True,
        )

    @classmethod
    def examples(cls) -> tuple[Example, ...]:
        def run(
            lowest: int,
            highest: int,
            classes: int = 10,
            count: float = 12800.0,
            loss: ArrayLike | None = None,
            **graph: Any,
        ) -> Run:
            signals = {
                "target/lowest": lowest,
                "target/highest": highest,
                "target/classes": highest - lowest + 1,
                "target/count": count,
            }
            op = Objective(kind="cross_entropy", classes=classes)
            return sample_run(loss=loss, signals=signals, objectives=(op,), graphs=(_graph(**graph),))

        return (
            fires("labels 1 … 9 for ten outputs, nothing learned", run(1, 9, loss=flat(200)), Severity.WARNING),
            fires("the same in a run that learns", run(1, 9), Severity.INFO),
            fires("class 0 is ignored", run(0, 9, ignore_index=0, zeros=0.1), Severity.ERROR),
            silent("near miss: labels 0 … 9", run(0, 9)),
            silent("near miss: a pretrained head of which three classes are used", run(0, 2)),
            silent("near miss: token labels with padding 0", run(1, 9, shape=(8, 12))),
            silent("near miss: the label is one of the input's tokens, 0 marks its place", run(1, 9, tokens=True)),
            fires("a map of labels that never reach the last output", run(0, 8, shape=(8, 12)), Severity.INFO),
            silent("near miss: token labels whose 0 is ignored", run(0, 9, ignore_index=0, zeros=0.4, shape=(8, 12))),
            silent("near miss: too few labels", run(1, 9, count=64.0)),
            silent("near miss: 0 is ignored and does not occur", run(0, 9, ignore_index=0, zeros=0.0)),
        )


def _tokens(graph: StepGraph) -> bool:
    """Whether an input is of whole numbers: a label may be one of them, and 0 have a meaning of its own."""
    given = [graph.values[leaf.value] for leaf in graph.leaves if leaf.role == "input"]
    return any(not value.floating and len(value.shape) > 0 for value in given)


def _one_label_each(graph: StepGraph) -> bool:
    """Whether the labels had one axis before they were reshaped."""
    origin = graph.target_of(graph.loss_ops[0])
    numbers = (origin.value,) if isinstance(origin, Leaf) else origin.outputs if origin is not None else ()
    return bool(numbers) and all(len(graph.values[n].shape) == 1 for n in numbers)


def _graph(
    ignore_index: int = -100, zeros: float = 0.1, shape: tuple[int, ...] = (64,), *, tokens: bool = False
) -> StepGraph:
    labels = Statistics(low=0.0, high=9.0, mean=4.5, std=2.9, zeros=zeros, nonfinite=0, integral=True)
    values = {
        0: Value(shape=(*shape, 10), dtype="float32", requires_grad=True),
        1: Value(shape=shape, dtype="int64", statistics=labels),
        2: Value(shape=(), dtype="float32", requires_grad=True),
        3: Value(shape=(*shape, 20), dtype="int64" if tokens else "float32"),
    }
    call = Op(
        name="torch.nn.functional.cross_entropy",
        tensors={"input": 0, "target": 1},
        outputs=(2,),
        arguments={"ignore_index": ignore_index},
    )
    leaves = (Leaf(value=0, role="constant"), Leaf(value=1, role="target"), Leaf(value=3, role="input"))
    return StepGraph(ops=(call,), values=values, leaves=leaves, losses=(2,), faithful=True)
