"""The graph of a recorded step: questions answered exactly, and kept on disk whatever the bytes."""

import json
import math
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from conftest import write_journal
from tape_models import CASES
from whyloss import read_run
from whyloss.core.finding import Place
from whyloss.core.sample import sample_run
from whyloss.core.sample_graph import F, SampleGraph, T
from whyloss.core.statistics import Statistics
from whyloss.core.step_graph import BACKWARD, CutKind, Leaf, Op, StepGraph, Value
from whyloss.journal import Journal
from whyloss.journal.graphs import graph_name, read_graph, to_bytes
from whyloss.tape.graph import plain_data, step_graph
from whyloss.tape.recording import recording
from whyloss.tape.replay import replay
from whyloss.tape.tape import BACKWARD as TAPE_BACKWARD

PARAMETER = st.sampled_from(["parameter", "buffer", "input", "target", "constant"])


def kinds(ops):
    return [op.kind for op in ops]


def names(leaves):
    return [leaf.name for leaf in leaves]


def classifier(middle=lambda step, x: x, last=lambda step, x: x):
    """linear, `middle`, linear, `last`, cross-entropy."""
    step = SampleGraph()
    x, y = step.leaf("input", "x", 8, 4), step.leaf("target", "", 8, dtype="int64")
    hidden = middle(step, step.linear(x, "a"))
    logits = last(step, step.linear(hidden, "b"))
    return step, step.loss("cross_entropy", logits, y, reduction="mean", ignore_index=-100, label_smoothing=0.0)


# -- names


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("torch.softmax", "softmax"),
        (F + "softmax", "softmax"),
        (T + "add_", "add"),
        (T + "__getitem__", "getitem"),
        (T + "data", "data"),
        (T + "data.__set__", "data"),
        ("mine.linear", "mine.linear"),
    ],
)
def test_the_kind_of_a_call_is_its_bare_name(name, kind):
    assert Op(name=name).kind == kind


@pytest.mark.parametrize(
    ("arguments", "reduction"),
    [
        ({"reduction": "sum"}, "sum"),
        ({"reduction": "mean", "size_average": False}, "sum"),
        ({"reduction": "mean", "reduce": False, "size_average": False}, "none"),
        ({"reduction": "mean", "reduce": None, "size_average": None}, "mean"),
        ({}, None),
    ],
)
def test_old_ways_to_name_a_reduction_count(arguments, reduction):
    assert Op(name=F + "mse_loss", arguments=arguments).reduction == reduction


def test_a_call_that_names_an_unknown_tensor_is_refused():
    with pytest.raises(ValueError, match="tensor 7 is named but not described"):
        StepGraph(ops=(Op(name="torch.relu", tensors={"input": 7}),))


# -- the loss


def test_the_loss_and_what_feeds_it():
    step, loss = classifier(last=lambda s, x: s.call(T + "view", s.call("torch.softmax", x)))
    graph = step.graph(loss)
    (op,) = graph.loss_ops
    assert (op.kind, op.reduction, op.arguments["ignore_index"], "weight" in op.tensors) == (
        "cross_entropy",
        "mean",
        -100,
        False,
    )
    assert graph.feeding(op).kind == "softmax"
    assert graph.target_of(op).role == "target"
    assert graph.values[graph.prediction(op)].shape == (8, 4)
    assert kinds(graph.ends) == ["cross_entropy"]


def test_a_loss_is_found_behind_scaling_sums_and_masks():
    step, first = classifier()
    y = step.leaf("target", "", 8, 4)
    second = step.loss("mse_loss", step.linear(0, "c"), y)
    total = step.call(T + "div", step.call(T + "add", first, step.call(T + "mul", second)))
    graph = step.graph(total)
    assert kinds(graph.loss_ops) == ["cross_entropy", "mse_loss"]
    assert kinds(graph.ends) == ["div"]
    assert kinds(graph.tail) == ["cross_entropy", "mse_loss", "mul", "add", "div"]


def test_a_penalty_on_the_weights_hides_no_loss():
    step, loss = classifier()
    penalty = step.call(T + "sum", step.call(T + "pow", 2), shape=())
    graph = step.graph(step.call(T + "add", loss, penalty, shape=()))
    assert kinds(graph.loss_ops) == ["cross_entropy"]


def test_a_hand_written_loss_has_ends_and_no_loss_op():
    step = SampleGraph()
    x, y = step.leaf("input", "x", 8, 4), step.leaf("target", "", 8, 4)
    out = step.linear(x, "a")
    loss = step.call(T + "mean", step.call(T + "__pow__", step.call(T + "sub", out, y)), shape=())
    graph = step.graph(loss)
    assert graph.loss_ops == ()
    assert kinds(graph.ends) == ["mean"]
    assert kinds(graph.tail) == ["sub", "pow", "mean"]


def test_a_loss_inside_the_model_is_none_of_the_step():
    step = SampleGraph()
    x, y = step.leaf("input", "x", 8, 4), step.leaf("target", "", 8, 4)
    energy = step.loss("mse_loss", x, x)
    loss = step.call(T + "mean", step.call(T + "sub", step.linear(energy, "a"), y), shape=())
    assert step.graph(loss).loss_ops == ()


def test_prediction_and_target_given_the_other_way_round():
    step = SampleGraph()
    x, y = step.leaf("input", "x", 8, 4), step.leaf("target", "y", 8, 4)
    out = step.linear(x, "a")
    graph = step.graph(step.loss("mse_loss", y, out))
    (op,) = graph.loss_ops
    assert graph.feeding(op).kind == "linear"
    assert graph.target_of(op).name == "y"


def test_a_loss_that_no_backward_call_names_is_found_by_its_number():
    step, loss = classifier()
    assert kinds(step.graph(loss, backward=False).loss_ops) == ["cross_entropy"]


def test_a_rounded_prediction_is_not_looked_through():
    step = SampleGraph()
    x, y = step.leaf("input", "x", 8, 4), step.leaf("target", "", 8, 4)
    whole = step.call(T + "long", step.linear(x, "a"), dtype="int64", live=False)
    graph = step.graph(step.loss("mse_loss", step.call(T + "float", whole), y))
    assert graph.feeding(graph.loss_ops[0]).kind == "long"


def test_a_loss_that_takes_no_target():
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    tensors = {"anchor": x, "positive": x, "negative": x}
    graph = step.graph(step.call(F + "triplet_margin_loss", tensors=tensors, shape=()))
    assert graph.target_of(graph.loss_ops[0]) is None


def test_producers_are_what_each_tensor_held_at_that_moment():
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    h = step.linear(x, "a")
    step.call(T + "__setitem__", h, changed=(h,), out=())
    graph = step.graph(step.call(T + "add", h, x))
    assert [made.kind if isinstance(made, Op) else made.name for made in graph.producers(graph.ops[-2])] == [
        "setitem",
        "x",
    ]


# -- gradients


def test_all_parameters_of_a_healthy_step_reach_the_loss():
    step, loss = classifier()
    graph = step.graph(loss)
    assert names(graph.reaching) == ["a.weight", "b.weight"]
    assert names(graph.used) == ["x", "", "a.weight", "b.weight"]
    assert graph.cuts == ()
    assert graph.cut_of("a.weight") == graph.cut_of("not there") == ()


CUTS = {
    "detach": (lambda s, x: s.call(T + "detach", x, live=False), CutKind.DETACH),
    "data": (lambda s, x: s.call(T + "data", x, live=False), CutKind.DETACH),
    "no_grad": (lambda s, x: s.call("torch.relu", x, grad=False), CutKind.NO_GRAD),
    "argmax": (lambda s, x: s.call(T + "argmax", x, dtype="int64", live=False), CutKind.DISCRETE),
    "comparison": (lambda s, x: s.call(T + "gt", x, dtype="bool", live=False), CutKind.DISCRETE),
    "argmax without grad mode": (
        lambda s, x: s.call(T + "argmax", x, dtype="int64", live=False, grad=False),
        CutKind.DISCRETE,
    ),
    "round, which has a derivative of 0": (lambda s, x: s.call("torch.round", x), CutKind.DISCRETE),
    "floor division": (lambda s, x: s.call("torch.div", x, arguments={"rounding_mode": "floor"}), CutKind.DISCRETE),
    "integers": (lambda s, x: s.call(T + "to", x, dtype="int64", live=False), CutKind.DISCRETE),
    "a new tensor": (lambda s, x: s.call("torch.tensor", x, live=False), CutKind.COPY),
    "a new tensor with a gradient of its own": (lambda s, x: s.call("torch.tensor", x, live=True), CutKind.COPY),
    "new_tensor": (lambda s, x: s.call(T + "new_tensor", 0, x, live=False), CutKind.COPY),
    "a gradient that can't be differentiated": (
        lambda s, x: s.call("torch.autograd.grad", x, live=False),
        CutKind.DETACH,
    ),
}


@pytest.mark.parametrize("case", CUTS)
def test_a_cut_is_found_and_named_for_what_lies_before_it(case):
    make, kind = CUTS[case]
    step, loss = classifier(middle=make)
    graph = step.graph(loss)
    (cut,) = graph.cuts
    assert (cut.op, cut.kind, cut.leads) == (graph.ops[1], kind, True)
    assert names(graph.reaching) == ["b.weight"]
    assert "a.weight" in names(graph.used)
    assert graph.cut_of("a.weight") == (cut,)
    assert graph.cut_of(graph.leaves[2]) == (cut,)
    assert graph.cut_of("b.weight") == ()


def test_only_the_first_of_two_detaches_ends_a_path():
    step, loss = classifier(lambda s, x: s.call(T + "detach", s.call(T + "data", x, live=False), live=False))
    assert kinds(cut.op for cut in step.graph(loss).cuts) == ["data"]


def test_a_branch_without_gradient_cuts_nothing_of_what_goes_beside_it():
    """A straight-through estimator: x + (round(x) - x).detach()."""

    def straight_through(s, x):
        rest = s.call(T + "sub", s.call("torch.round", x), x)
        return s.call(T + "add", x, s.call(T + "detach", rest, live=False))

    step, loss = classifier(straight_through)
    graph = step.graph(loss)
    assert kinds(cut.op for cut in graph.cuts) == ["round", "detach"]
    assert "a.weight" in names(graph.reaching)
    assert graph.cut_of("a.weight") == ()


def test_the_indices_of_a_maximum_are_a_cut_where_they_are_used():
    def largest(picked):
        def make(s, x):
            out = (s.value((8,), requires_grad=True), s.value((8,), "int64"))
            s.call("torch.max", x, out=out)
            return out[picked]

        return make

    step, loss = classifier(largest(0))
    assert step.graph(loss).cuts == ()
    step, loss = classifier(largest(1))
    (cut,) = step.graph(loss).cuts
    assert (cut.op.kind, cut.leads) == ("max", True)
    assert step.graph(loss).cut_of("a.weight") == (cut,)


def test_what_left_torch_is_a_cut_that_leads_nowhere():
    step = SampleGraph()
    x, y = step.leaf("input", "x", 8, 4), step.leaf("target", "", 8, 4)
    h = step.linear(x, "a", aside=True)
    step.call(T + "numpy", step.call(T + "detach", h, live=False, aside=True), out=(), aside=True)
    back = step.leaf("constant", "", 8, 4)
    loss = step.loss("mse_loss", step.linear(back, "b"), y)
    step.call(T + "item", loss, out=(), aside=True)
    graph = step.graph(loss)
    assert [(cut.op.kind, cut.kind, cut.leads) for cut in graph.cuts] == [
        ("detach", CutKind.DETACH, False),
        ("item", CutKind.EXIT, False),
    ]
    assert kinds(cut.op for cut in graph.cut_of("a.weight")) == ["detach"]
    assert graph.cut_of("b.weight") == ()


def test_a_cast_to_float_is_no_way_out_of_torch():
    step, loss = classifier(lambda s, x: s.call(T + "float", x))
    assert step.graph(loss).cuts == ()
    step.call(T + "__float__", loss, out=(), aside=True)
    assert [cut.kind for cut in step.graph(loss).cuts] == [CutKind.EXIT]


def test_the_shape_alone_carries_no_gradient():
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    h = step.linear(x, "a")
    like = step.call("torch.zeros_like", h, live=False)
    graph = step.graph(step.call(T + "sum", like, shape=()))
    assert graph.cuts == ()
    assert graph.reaching == ()


def test_a_loss_that_was_made_to_require_grad_reaches_nothing():
    step, loss = classifier()
    dead = step.call(T + "detach", loss, live=False)
    step.call(T + "requires_grad_", dead, out=(dead,), arguments={"requires_grad": True})
    graph = step.graph(dead)
    assert graph.reaching == ()
    assert kinds(cut.op for cut in graph.cut_of("a.weight")) == ["detach"]
    assert kinds(graph.loss_ops) == ["cross_entropy"]


def test_detach_in_place_ends_the_path_of_the_same_tensor():
    def detach(s, x):
        s.call(T + "detach_", x, out=(x,))
        return x

    step, loss = classifier(detach)
    graph = step.graph(loss)
    assert [(cut.op.kind, cut.kind) for cut in graph.cuts] == [("detach", CutKind.DETACH)]
    assert names(graph.reaching) == ["b.weight"]


def test_a_call_that_gives_back_its_input_changes_nothing():
    def same(s, x):
        s.call(T + "contiguous", x, out=(x,), grad=False)
        return x

    step, loss = classifier(same)
    assert names(step.graph(loss).reaching) == ["a.weight", "b.weight"]
    assert step.graph(loss).cuts == ()


def test_a_frozen_parameter_has_no_path_and_no_cut():
    step = SampleGraph()
    x, frozen = step.leaf("input", "x", 8, 4), step.leaf("parameter", "w", 4, 4, requires_grad=False)
    out = step.call(F + "linear", x, frozen)
    graph = step.graph(step.call(T + "sum", step.call(T + "detach", step.linear(out, "a"), live=False)))
    assert graph.cut_of("w") == ()
    assert kinds(cut.op for cut in graph.cut_of("a.weight")) == ["detach"]


def test_results_inside_a_reentrant_checkpoint_require_grad_later():
    step, loss = classifier(lambda s, x: s.call("torch.tanh", s.call("torch.relu", x, live=False), live=True))
    assert names(step.graph(loss).reaching) == ["a.weight", "b.weight"]
    step, loss = classifier(lambda s, x: s.call("mine.Quantize", x, live=False))
    assert names(step.graph(loss).reaching) == ["b.weight"]


def test_backward_ends_the_graph():
    """Two micro-batches: what the second uses of the first is a number of the tape, not a path."""
    step, first = classifier()
    step.ops.append(Op(name=BACKWARD, tensors={"tensors[0]": first}, outputs=(first,)))
    second = step.loss("mse_loss", step.linear(0, "c"), step.leaf("target", "", 8, 4))
    graph = step.graph(second)
    assert kinds(graph.ends) == ["mse_loss"]
    assert names(graph.reaching) == ["c.weight"]
    both = replace(graph, losses=(first, second))
    assert kinds(both.loss_ops) == ["cross_entropy", "mse_loss"]


# -- changes in place


def filled(grad=True, through=None):
    """buffer = zeros; buffer[0] = linear(x), by way of a view or not; sum of the buffer."""
    step = SampleGraph()
    x, h = step.leaf("input", "x", 8, 4), None
    buffer = step.call("torch.zeros")
    view = step.call(through, buffer) if through else buffer
    h = step.linear(x, "a")
    if through:
        out = step.value((8, 4), requires_grad=grad)
        step.call(T + "copy_", view, h, changed=(view,), out=(out,), grad=grad)
    else:
        step.call(T + "__setitem__", buffer, h, changed=(buffer,), out=(), grad=grad)
    return step.graph(step.call(T + "sum", buffer, shape=(), live=grad))


def test_a_buffer_that_is_filled_carries_the_gradient():
    assert names(filled().reaching) == ["a.weight"]
    assert filled().cuts == ()


@pytest.mark.parametrize("view", [T + "__getitem__", T + "view", T + "transpose"])
def test_a_buffer_that_is_filled_through_a_view_carries_it_too(view):
    assert names(filled(through=view).reaching) == ["a.weight"]


@pytest.mark.parametrize("alias", [T + "detach", T + "data"])
def test_a_buffer_that_is_filled_behind_autograd_carries_none(alias):
    graph = filled(through=alias)
    assert graph.reaching == ()
    assert "a.weight" in names(graph.used)


def test_a_buffer_that_is_filled_without_grad_mode_is_a_cut():
    graph = filled(grad=False)
    assert graph.reaching == ()
    (cut,) = graph.cut_of("a.weight")
    assert (cut.op.kind, cut.kind, cut.leads) == ("setitem", CutKind.NO_GRAD, True)


def test_a_copy_by_index_is_no_view():
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    base, index = step.linear(x, "a"), step.leaf("constant", "", 3, dtype="int64")
    picked = step.call(T + "__getitem__", tensors={"input": base, "key": index})
    out = step.value((8, 4), requires_grad=True)
    step.call(T + "add_", picked, step.linear(x, "b"), changed=(picked,), out=(out,))
    graph = step.graph(step.call(T + "sum", base))
    assert names(graph.reaching) == ["a.weight"]


def test_scaling_in_place_without_grad_mode_leaves_the_path_of_the_tensor_itself():
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    h, scale = step.linear(x, "a"), step.linear(x, "b")
    out = step.value((8, 4), requires_grad=True)
    step.call(T + "mul_", h, scale, changed=(h,), out=(out,), grad=False)
    graph = step.graph(step.call(T + "sum", out))
    assert names(graph.reaching) == ["a.weight"]
    assert kinds(cut.op for cut in graph.cut_of("b.weight")) == ["mul"]


def test_running_statistics_are_no_path_and_no_cut():
    """A batch norm that runs twice: the second reads what the first wrote."""
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    mean, weight = step.leaf("buffer", "mean", 4), step.leaf("parameter", "bn.weight", 4)
    for name in ("a", "b"):
        tensors = {"input": step.linear(x, name), "running_mean": mean, "weight": weight}
        x = step.call(F + "batch_norm", tensors=tensors, changed=(mean,))
    graph = step.graph(step.call(T + "sum", step.linear(x, "c"), shape=()))
    assert graph.cuts == ()
    assert names(graph.reaching) == ["bn.weight", "a.weight", "b.weight", "c.weight"]
    assert [kinds(pair.between) for pair in graph.between_affine] == [["batch_norm"], ["batch_norm"]]


def test_setting_data_leaves_the_parameter_where_it_was():
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    made = step.linear(x, "a")
    weight = step.leaf("parameter", "w", 8, 4)
    step.call(T + "data.__set__", weight, made, out=())
    graph = step.graph(step.call(T + "sum", weight))
    assert names(graph.reaching) == ["w"]
    (cut,) = graph.cut_of("a.weight")
    assert (cut.op.name, cut.kind, cut.leads) == (T + "data.__set__", CutKind.DETACH, True)


# -- affine pairs


def affine(*calls):
    def middle(step, x):
        for call in calls:
            x = step.call(call, x)
        return x

    step, loss = classifier(middle)
    (pair,) = step.graph(loss).between_affine
    assert kinds((pair.first, pair.second)) == ["linear", "linear"]
    return kinds(pair.between)


def test_nothing_between_two_affine_calls():
    assert affine() == []
    assert affine(T + "view", T + "transpose", F + "dropout", T + "contiguous") == []


def test_what_stands_between_two_affine_calls():
    assert affine("torch.relu") == ["relu"]
    assert affine(T + "view", F + "layer_norm", F + "dropout", F + "gelu") == ["layer_norm", "gelu"]


@pytest.mark.parametrize("merge", [T + "add", T + "mul", "torch.cat"])
def test_where_two_results_meet_there_is_no_pair(merge):
    step, loss = classifier(lambda s, x: s.call(merge, x, s.call("torch.sigmoid", x)))
    assert step.graph(loss).between_affine == ()


def test_products_with_a_weight_are_affine_and_others_are_not():
    step = SampleGraph()
    x, bias = step.leaf("constant", "", 8, 4), step.leaf("parameter", "b", 4)
    weights = [step.leaf("parameter", f"w{i}", 4, 4) for i in range(2)]
    h = step.call(T + "matmul", x, weights[0])
    h = step.call("torch.addmm", bias, h, step.call(T + "t", weights[1]))
    h = step.call("torch.bmm", h, step.call(T + "transpose", h))
    graph = step.graph(h)
    (pair,) = graph.between_affine
    assert kinds((pair.first, pair.second)) == ["matmul", "addmm"]
    assert pair.between == ()


@pytest.mark.parametrize("role", ["parameter", "constant"])
def test_a_weight_that_is_computed_from_what_is_trained_is_a_weight(role):
    """Weight normalisation, a low-rank product; of plain tensors, too."""
    step = SampleGraph()
    x = step.leaf("input", "x", 8, 4)
    first, second = (step.leaf(role, "", 4, 4, requires_grad=True) for _ in range(2))
    made = step.call("torch.mm", first, second)
    h = step.call(F + "linear", tensors={"input": step.linear(x, "a"), "weight": made})
    (pair,) = step.graph(h).between_affine
    assert pair.between == ()


def test_an_input_that_requires_grad_is_no_weight():
    step = SampleGraph()
    x, y = step.leaf("constant", "x", 8, 4, requires_grad=True), step.leaf("target", "", 8, 4)
    h = step.linear(step.call("torch.tanh", step.linear(x, "a")), "b")
    graph = step.graph(step.call(T + "div", step.loss("mse_loss", h, y)))
    assert [kinds(pair.between) for pair in graph.between_affine] == [["tanh"]]
    assert kinds(graph.tail) == ["mse_loss", "div"]
    assert names(graph.reaching) == ["x", "a.weight", "b.weight"]


def test_a_product_with_a_fixed_table_is_not_affine():
    step = SampleGraph()
    x, table = step.leaf("input", "x", 8, 4), step.leaf("buffer", "table", 4, 4)
    h = step.call(T + "matmul", step.linear(x, "a"), table)
    assert [kinds(p.between) for p in step.graph(step.linear(h, "b")).between_affine] == [["matmul"]]


# -- broadcasts


def difference(left, right, shape, call=T + "sub"):
    step = SampleGraph()
    a, b = step.leaf("input", "a", *left), step.leaf("target", "b", *right)
    return step.graph(step.call(call, a, b, shape=shape)).broadcasts


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [((8, 1), (8,), (8, 8)), ((8,), (8, 1), (8, 8)), ((5, 1, 3), (4, 1), (5, 4, 3))],
)
def test_a_difference_that_enlarges_both_sides(left, right, result):
    (found,) = difference(left, right, result)
    assert (found.left, found.right, found.result, found.both) == (left, right, result, True)


@pytest.mark.parametrize(
    ("left", "right"),
    [((8, 4), (4,)), ((8, 4), ()), ((8, 4), (8, 1)), ((8,), (8,)), ((1, 1), (1,)), ((8, 4), (3,)), ((0, 1), (0,))],
)
def test_a_bias_a_scale_and_equal_shapes_are_no_broadcast(left, right):
    assert difference(left, right, left) == ()


def test_of_a_loss_every_difference_in_shape_counts():
    (found,) = difference((8, 4), (4,), (), F + "mse_loss")
    assert not found.both
    (found,) = difference((8, 1), (8,), (), F + "l1_loss")
    assert (found.both, found.result) == (True, (8, 8))
    assert difference((8, 4), (8,), (), F + "cross_entropy") == ()


# -- on disk


def rich(step=2):
    made, loss = classifier(lambda s, x: s.call("torch.relu", x, arguments={"low": -math.inf, "x": [math.nan, "inf"]}))
    looked = Statistics(low=-math.inf, high=1.0, mean=0.5, std=0.0, zeros=0.1, nonfinite=1, scales=(0.1, 2.0))
    made.values[0] = replace(made.values[0], statistics=looked)
    place = Place(module="net.0", file="/train.py", line=7, source="h = self.a(x)")
    made.ops[0] = replace(made.ops[0], place=place, module="net.0", autocast=True)
    return made.graph(loss, step=step, trace=0, faithful=True)


@pytest.fixture
def journal(tmp_path):
    """A run of 8 updates whose steps 2 and 0 were recorded, in that order."""
    folder = write_journal(tmp_path / "run", sample_run(8))
    return add_graphs(folder, rich(2), rich(0), rich(0))


def add_graphs(folder, *graphs):
    writer = Journal(folder.with_name("other"))
    for graph in graphs:
        writer.graph(graph)
    writer.close()
    for path in writer.folder.glob("graph-*"):
        shutil.copy(path, folder)
    with (folder / "events-r0.jsonl").open("ab") as file:
        file.write((writer.folder / "events-r0.jsonl").read_bytes())
    shutil.rmtree(writer.folder)
    return folder


def test_a_graph_comes_back_as_it_was(journal):
    assert sorted(path.name for path in journal.glob("graph-*")) == ["graph-o0-step0-r0.json", "graph-o0-step2-r0.json"]
    run = read_run(journal)
    first, second = run.traces[0].graphs
    assert (first.step, second.step) == (0, 2)
    wanted = rich(2)
    relu = second.ops[1]
    assert relu.arguments["low"] == -math.inf
    assert math.isnan(relu.arguments["x"][0])
    assert second.values == wanted.values
    assert [replace(op, arguments={}) for op in second.ops] == [replace(op, arguments={}) for op in wanted.ops]
    assert (second.leaves, second.losses) == (wanted.leaves, wanted.losses)
    assert run.facts.limits == ()
    assert second.loss_ops == wanted.loss_ops


def test_statistics_that_are_not_numbers_come_back(tmp_path):
    nothing = Statistics(low=math.nan, high=math.inf, mean=math.nan, std=math.nan, zeros=math.nan, nonfinite=0)
    graph = StepGraph(values={3: Value(shape=(0,), dtype="float32", statistics=nothing)})
    (tmp_path / graph_name(0, 0, 0)).write_bytes(to_bytes(graph))
    found = read_graph(tmp_path, 0, 0, 0).values[3].statistics
    assert math.isnan(found.low)
    assert found.high == math.inf


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "can't be read"),
        (b"", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"ops": [{"name": 3}]}', "is damaged"),
        (b'{"ops": [{"name": "torch.relu", "tensors": {"input": 7}}]}', "tensor 7 is named but not described"),
        (b'{"step": 1}', "holds step 1 of optimizer 0"),
        (b'{"ops": [{"name": "x", "arguments": ' + b"[" * 100_000, "is damaged"),
        (b"\xff\xfe{", "is damaged"),
    ],
)
def test_a_graph_that_is_missing_or_damaged_is_a_limit(journal, content, says):
    path = journal / "graph-o0-step2-r0.json"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    run = read_run(journal)
    assert [graph.step for graph in run.traces[0].graphs] == [0]
    (limit,) = run.facts.limits
    assert limit.startswith(f"the recorded step 2 is left out: {path.name}")
    assert says in limit


def test_a_directory_in_the_place_of_a_graph_is_a_limit(journal):
    path = journal / "graph-o0-step2-r0.json"
    path.unlink()
    path.mkdir()
    assert len(read_run(journal).facts.limits) == 1


@pytest.mark.parametrize("step", ["../../etc", -1, 2**60, 1.5, None])
def test_an_event_can_name_no_file_outside_the_folder(journal, step):
    with (journal / "events-r0.jsonl").open("ab") as file:
        file.write(json.dumps({"event": "graph", "trace": 0, "step": step}).encode() + b"\n")
    with pytest.raises(Exception, match=r"graph: "):
        read_run(journal)


def test_a_graph_that_finds_no_room_leaves_no_rubbish(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "run")

    def full(self, data):
        self.touch()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OSError, match="No space"):
        journal.graph(rich())
    journal.close()
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["events-r0.jsonl"]
    assert (tmp_path / "run" / "events-r0.jsonl").read_bytes() == b""


FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read_with(folder, content):
    """The run is read; the graph is either there or said to be lost."""
    (folder / "graph-o0-step2-r0.json").write_bytes(content)
    run = read_run(folder)
    steps = [graph.step for graph in run.traces[0].graphs]
    assert (steps, len(run.facts.limits)) in (([0, 2], 0), ([0], 1))
    return run.traces[0].graphs


def ask_all(graph):
    """Whatever a graph that could be read holds: each question has an answer."""
    graph.ends, graph.cuts, graph.reaching, graph.used, graph.between_affine, graph.broadcasts, graph.tail  # noqa: B018
    for leaf in graph.leaves:
        graph.cut_of(leaf)
    for op in (*graph.ops, *graph.aside):
        graph.producers(op)


@FUZZ
@given(data=st.binary(max_size=400))
def test_any_bytes_as_a_graph(journal, data):
    read_with(journal, data)


@FUZZ
@given(data=st.data())
def test_any_change_of_bytes_in_a_graph(journal, data):
    content = bytearray(to_bytes(rich(2)))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    for graph in read_with(journal, bytes(content[: data.draw(st.integers(0, len(content)))])):
        ask_all(graph)


TENSORS = st.integers(0, 5)
CALLS = st.sampled_from(
    [F + n for n in ("linear", "cross_entropy", "mse_loss", "batch_norm", "dropout")]
    + [T + n for n in ("add_", "__setitem__", "detach", "detach_", "view", "item", "data.__set__", "requires_grad_")]
    + ["torch.max", "torch.zeros_like", "torch.addmm", "torch.matmul", "mine.f", BACKWARD]
)


@FUZZ
@given(
    calls=st.lists(
        st.tuples(CALLS, st.lists(TENSORS, max_size=3), st.lists(TENSORS, max_size=2), st.booleans()), max_size=8
    ),
    shapes=st.lists(st.lists(st.integers(-1, 3), max_size=3), min_size=6, max_size=6),
    requires=st.lists(st.booleans(), min_size=6, max_size=6),
    losses=st.lists(TENSORS, max_size=2),
    roles=st.lists(PARAMETER, max_size=6),
)
def test_any_graph_answers_every_question(calls, shapes, requires, losses, roles):
    """Also one that no recorder makes: results that are never made, calls that change what they are not given."""
    ops = tuple(
        Op(
            name=name,
            tensors={str(i): n for i, n in enumerate(given)},
            outputs=tuple(out),
            changed=tuple(given[:1]),
            grad=g,
        )
        for name, given, out, g in calls
    )
    graph = StepGraph(
        ops=ops[:6],
        aside=ops[6:],
        values={i: Value(shape=tuple(s), dtype="float32", requires_grad=requires[i]) for i, s in enumerate(shapes)},
        leaves=tuple(Leaf(value=i, role=role, name=str(i)) for i, role in enumerate(roles)),
        losses=tuple(losses),
    )
    ask_all(graph)
    assert msgspec.json.decode(to_bytes(graph), type=StepGraph, strict=False) == graph
    for leaf in graph.leaves:
        assert not (leaf in graph.reaching and graph.cut_of(leaf))


# -- of steps that were recorded


def recorded(model, loss, *batch):
    with recording(model) as step:
        loss(model, *batch).backward()
    return step_graph(step.tape())


class Net(nn.Module):
    """Two layers with a function between them and one at the end; `side` is not on the way."""

    def __init__(self, between=torch.relu, end=lambda h: h, out=5):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head, self.side = nn.Linear(6, 4), nn.Linear(4, out), nn.Linear(6, 4)
        self.between, self.end = between, end

    def forward(self, x):
        return self.end(self.head(self.between(self.hidden(x))))


def classify(model, x):
    return functional.cross_entropy(model(x), torch.arange(len(x)) % 5)


X = torch.linspace(-1, 1, 48).view(8, 6)
HEAD = ["head.weight", "head.bias"]
HIDDEN = ["hidden.weight", "hidden.bias"]


def test_the_core_and_the_tape_mean_the_same_backward():
    assert BACKWARD == TAPE_BACKWARD


@pytest.mark.parametrize("softmax", [lambda h: h.softmax(-1), nn.Softmax(-1), lambda h: torch.softmax(h, 1)])
def test_a_softmax_before_cross_entropy(softmax):
    graph = recorded(Net(end=softmax), classify, X)
    (loss,) = graph.loss_ops
    assert (loss.name, loss.reduction, loss.arguments["label_smoothing"]) == (F + "cross_entropy", "mean", 0.0)
    assert loss.tensors.keys() == {"input", "target"}
    feeding = graph.feeding(loss)
    assert feeding.kind == "softmax"
    assert feeding.arguments["dim"] in (-1, 1)
    assert graph.values[graph.prediction(loss)].statistics.distribution
    target = graph.values[graph.target(loss)]
    assert (target.shape, target.dtype) == ((8,), "int64")
    assert (graph.faithful, graph.reason, graph.training) == (True, "", True)
    assert loss.place.source == "return functional.cross_entropy(model(x), torch.arange(len(x)) % 5)"


def test_weights_of_a_loss_are_named_among_its_tensors():
    criterion = nn.CrossEntropyLoss(torch.ones(5), reduction="sum", ignore_index=3, label_smoothing=0.1)
    graph = recorded(Net(), lambda model, x: criterion(model(x), torch.arange(8) % 5), X)
    (loss,) = graph.loss_ops
    assert "weight" in loss.tensors
    assert (loss.reduction, loss.arguments["ignore_index"], loss.arguments["label_smoothing"]) == ("sum", 3, 0.1)


@pytest.mark.parametrize(
    ("cut", "kind", "leads"),
    [
        (lambda h: h.detach(), CutKind.DETACH, True),
        (lambda h: h.data, CutKind.DETACH, True),
        (lambda h: torch.tensor(h.tolist()), CutKind.EXIT, False),
        (lambda h: torch.from_numpy(h.detach().numpy().copy()), CutKind.DETACH, False),
        (lambda h: h.new_tensor(h.detach().cpu().numpy()), CutKind.DETACH, False),
        (lambda h: h.detach_(), CutKind.DETACH, True),
        (torch.no_grad()(lambda h: h * 2), CutKind.NO_GRAD, True),
        (lambda h: torch.round(h), CutKind.DISCRETE, True),
        (lambda h: (h > 0).float(), CutKind.DISCRETE, True),
        (lambda h: functional.one_hot(h.argmax(-1), 4).float(), CutKind.DISCRETE, True),
        (lambda h: h.long().float(), CutKind.DISCRETE, True),
    ],
)
def test_a_cut_between_two_layers(cut, kind, leads):
    graph = recorded(Net(between=cut), classify, X)
    assert names(graph.reaching) == HEAD
    assert {"hidden.weight", "head.weight"} <= set(names(graph.used))
    assert "side.weight" not in names(graph.used)
    found = graph.cut_of("hidden.weight")
    assert found == graph.cut_of("hidden.bias")
    assert {(c.kind, c.leads) for c in found} == {(kind, leads)}
    assert all(c.op.place.file == __file__ for c in found)
    assert graph.cut_of("head.weight") == ()


def test_a_loss_that_is_a_number_again():
    def loss(model, x):
        return torch.tensor(classify(model, x).item(), requires_grad=True)

    graph = recorded(Net(), loss, X)
    assert graph.reaching == ()
    assert [(c.op.kind, c.kind) for c in graph.cut_of("head.weight")] == [("item", CutKind.EXIT)]


def test_a_metric_cuts_nothing():
    def loss(model, x):
        out = model(x)
        float((out.argmax(-1) == 0).float().mean())
        return functional.cross_entropy(out, torch.zeros(8, dtype=torch.long))

    graph = recorded(Net(), loss, X)
    assert [cut.leads for cut in graph.cuts] == [False]
    assert sorted(names(leaf for leaf in graph.reaching)) == sorted(HIDDEN + HEAD)


@pytest.mark.parametrize(
    ("between", "found"),
    [
        (lambda h: h, []),
        (lambda h: h.view(4, 2, 4).transpose(0, 1).flatten(0, 1), []),
        (nn.Dropout(0.1), []),
        (lambda h: functional.relu(h, inplace=True), ["relu"]),
        (nn.Sequential(nn.LayerNorm(4), nn.GELU()), ["layer_norm", "gelu"]),
    ],
)
def test_what_was_recorded_between_two_layers(between, found):
    (pair,) = recorded(Net(between=between), classify, X).between_affine
    assert (pair.first.module, pair.second.module) == ("hidden", "head")
    assert kinds(pair.between) == found


@pytest.mark.parametrize("how", [functional.mse_loss, lambda a, b: ((a - b) ** 2).mean()])
@pytest.mark.filterwarnings("ignore:Using a target size")
def test_a_column_against_a_row(how):
    graph = recorded(Net(out=1), lambda model, x: how(model(x), torch.ones(8)), X)
    (found,) = graph.broadcasts
    assert (found.left, found.right, found.result, found.both) == ((8, 1), (8,), (8, 8), True)
    assert found.op in graph.tail
    assert recorded(Net(out=1), lambda model, x: how(model(x)[:, 0], torch.ones(8)), X).broadcasts == ()


def test_arguments_are_plain_data_and_survive_the_journal(tmp_path):
    mask = torch.eye(4, dtype=torch.bool)[[0, 1] * 4]

    def between(h):
        h = h.masked_fill(mask, -math.inf).clamp(min=-3.0).to(torch.float64).to(device="cpu", dtype=torch.float32)
        h = torch.cat([h[..., :2], h[:, [2, 3]]], -1)[torch.arange(8), None, :].squeeze(1)
        return h + torch.tensor(list(range(100)))[:4] + torch.rand(4, generator=torch.Generator())

    graph = recorded(Net(between), classify, X)
    journal = Journal(tmp_path / "run")
    journal.graph(graph)
    journal.close()
    found = read_graph(tmp_path / "run", 0, 0, 0)
    assert (found.ops, found.aside, found.leaves) == (graph.ops, graph.aside, graph.leaves)
    ops = {op.kind: op for op in found.ops}
    assert ops["masked_fill"].tensors.keys() == {"input", "mask"}
    assert ops["masked_fill"].arguments == {"value": -math.inf}
    assert ops["to"].arguments == {"device": "cpu", "dtype": "float32"}
    assert ops["cat"].tensors.keys() == {"tensors[0]", "tensors[1]"}
    assert ops["cat"].arguments == {"dim": -1}
    keys = [op.arguments["key"] for op in found.ops if op.kind == "getitem" and "key[0]" in op.tensors]
    (index,) = [op.tensors["key[0]"] for op in found.ops if "key[0]" in op.tensors]
    assert keys == [[{"tensor": index}, None, {"slice": [None, None, None]}]]
    assert ops["tensor"].arguments == {"0": "list of 100"}
    assert isinstance(ops["rand"].arguments["generator"], str)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (True, True),
        (2**70, str(2**70)),
        (np.float32(0.5), 0.5),
        (np.ones(3), "ndarray"),
        (1j, "1j"),
        (torch.channels_last, "channels_last"),
        (torch.device("cuda", 1), "cuda:1"),
        (torch.Size([2, 3]), [2, 3]),
        ([[[[1]]]], [["list of 1"]]),
        ({"a": (1, None)}, {"a": [1, None]}),
        (..., "..."),
        (len, "builtin_function_or_method"),
        ("x" * 2000, "x" * 1000),
    ],
)
def test_what_is_kept_of_an_argument(given, plain):
    assert plain_data(given) == plain


NOT_ALL_ASKED_FOR = "gradient_of_a_vector"  # backward(inputs=…)
LARGE = ("llama", "bert", "t5", "gpt2")


@pytest.mark.parametrize(
    "name", [n for n in CASES if n != NOT_ALL_ASKED_FOR and not n.startswith((*LARGE, "compiled"))]
)
def test_the_leaves_that_reach_the_loss_are_those_that_get_a_gradient(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        training = CASES[name].make()
        with recording(training.model) as step:
            training.step()
        tape = step.tape()
        gradients = replay(tape).gradients
    graph = step_graph(tape)
    assert {leaf.value for leaf in graph.reaching} == {n for n, g in gradients.items() if g is not None}
    ask_all(graph)
    assert msgspec.json.decode(to_bytes(graph), type=StepGraph, strict=False).loss_ops == graph.loss_ops
