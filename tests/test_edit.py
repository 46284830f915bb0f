"""Edits of a tape give what the same code written the other way gives."""

import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whyloss.tape.edit import Refused, drop, find, insert, reattach, reinitialise, substitute, unfreeze, with_argument
from whyloss.tape.recording import recording
from whyloss.tape.replay import replay
from whyloss.tape.tape import Ref, Role


class Net(nn.Module):
    """Two layers with a function between them and one at the end."""

    def __init__(self, between=F.relu, end=lambda h: h, layers=(20, 16, 5)):
        super().__init__()
        torch.manual_seed(0)
        self.hidden, self.head = nn.Linear(layers[0], layers[1]), nn.Linear(layers[1], layers[2])
        self.between, self.end = between, end

    def forward(self, x):
        return self.end(self.head(self.between(self.hidden(x))))


def batch(rows=8):
    g = torch.Generator().manual_seed(1)
    return torch.randn(rows, 20, generator=g), torch.randint(0, 5, (rows,), generator=g)


def record(model, loss=F.cross_entropy, data=None, optimizer=None):
    x, y = batch() if data is None else data
    with recording(model, optimizer) as step:
        loss(model(x), y).backward()
    return step.tape()


def same(tape, model, loss=F.cross_entropy, data=None):
    """Whether the tape gives bit for bit what the model gives."""
    x, y = batch() if data is None else data
    model = copy.deepcopy(model)
    model.zero_grad()
    value = loss(model(x), y)
    value.backward()
    played = replay(tape)
    assert torch.equal(sum(played.losses), value.detach())
    for name, p in model.named_parameters():
        got = played.gradients.get(tape.named(name).index)
        assert (got is None) == (p.grad is None), name
        assert got is None or torch.equal(got, p.grad), name
    return True


def softmaxed(h):
    return h.softmax(-1)


def in_no_grad(h):
    with torch.no_grad():
        return F.relu(h)


# -- find


def test_find_by_full_name_last_part_and_module():
    tape = record(Net(between=torch.relu, end=softmaxed))
    assert [tape.ops[i].name for i in find(tape, "softmax")] == ["torch.Tensor.softmax"]
    assert find(tape, "torch.softmax") == ()
    assert find(tape, "linear", module="head") == find(tape, "torch.nn.functional.linear")[1:]
    assert find(tape, "linear", module="nowhere") == ()


# -- drop


def test_dropping_the_softmax_gives_the_model_without_it():
    tape = record(Net(end=softmaxed))
    before = (tape.ops, tape.values, tape.reason)
    edited = drop(tape, *find(tape, "softmax"))
    assert same(edited, Net())
    assert not edited.faithful
    assert edited.reason.startswith("edited: dropped torch.Tensor.softmax at ")
    assert (tape.ops, tape.values, tape.reason) == before
    assert tape.faithful
    assert same(tape, Net(end=softmaxed))


def test_dropping_several_keeps_the_story():
    tape = record(Net(between=lambda h: torch.tanh(torch.relu(h)), end=softmaxed))
    edited = drop(drop(tape, *find(tape, "relu"), *find(tape, "tanh")), *find(tape, "nothing"))
    edited = drop(edited, *find(edited, "softmax"))
    assert same(edited, Net(between=lambda h: h))
    assert edited.reason.count("edited: ") == 1
    assert "; dropped torch.Tensor.softmax" in edited.reason


def test_dropping_a_copy_before_a_change_in_place_leaves_the_original_as_it_is():
    def cloned(h):
        kept = h.sigmoid()
        return kept.clone().mul_(2.0) + kept

    tape = record(Net(between=cloned))
    edited = drop(tape, *find(tape, "clone"))
    assert same(edited, Net(between=cloned))


def test_dropping_an_op_that_changes_its_input_in_place():
    tape = record(Net(between=lambda h: torch.relu_(h)))
    assert same(drop(tape, *find(tape, "relu_")), Net(between=lambda h: h))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("linear", r"gives shape \(8, 16\) from \(8, 20\)"),
        ("chunk", "has 2 results that are used"),
        ("zeros", "is given no tensor"),
        ("double", "gives dtype torch.float64 from torch.float32"),
        ("backward", "a backward call can't be edited"),
    ],
)
def test_drop_refuses_what_the_identity_cannot_stand_for(name, reason):
    def between(h):
        a, b = h.chunk(2, -1)
        return (torch.cat((b, a), -1) + torch.zeros(16)).double().float()

    tape = record(Net(between=between))
    with pytest.raises(Refused, match=reason):
        drop(tape, find(tape, name)[0])


def test_no_such_op_is_refused():
    with pytest.raises(Refused, match="no 99"):
        drop(record(Net()), 99)


# -- substitute


@pytest.mark.parametrize("call", [F.leaky_relu, "torch.nn.functional.leaky_relu"])
def test_another_activation(call):
    tape = record(Net(between=torch.relu))
    edited = substitute(tape, find(tape, "relu")[0], call, negative_slope=0.1)
    assert same(edited, Net(between=lambda h: F.leaky_relu(h, 0.1)))
    assert edited.ops[find(edited, "leaky_relu")[0]].name == "torch.nn.functional.leaky_relu"
    assert "became torch.nn.functional.leaky_relu(negative_slope=0.1)" in edited.reason


def test_another_loss():
    tape = record(Net(end=softmaxed), lambda out, y: F.nll_loss(out, y))
    edited = substitute(tape, find(tape, "nll_loss")[0], F.cross_entropy)
    assert same(edited, Net(end=softmaxed))


def test_substitute_gives_the_arguments_it_is_told():
    tape = record(Net(between=lambda h: h * h.sigmoid()))
    op = tape.ops[find(tape, "mul")[0]]
    edited = substitute(tape, find(tape, "mul")[0], torch.add, Ref(op.inputs[0]), Ref(op.inputs[1]), alpha=2)
    assert same(edited, Net(between=lambda h: torch.add(h, h.sigmoid(), alpha=2)))


def test_an_op_that_draws_only_after_the_edit_draws_the_same_each_time_and_nothing_of_the_users():
    tape = record(Net(between=torch.relu))
    state = torch.get_rng_state()
    edited = substitute(tape, find(tape, "relu")[0], F.dropout, p=0.5)
    first, second = replay(edited), replay(edited)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first.losses[0], second.losses[0])
    torch.rand(7)
    again = substitute(tape, find(tape, "relu")[0], F.dropout, p=0.5)
    assert torch.equal(replay(again).losses[0], first.losses[0])


@pytest.mark.parametrize(
    ("name", "call", "reason"),
    [
        ("relu", "torch.no_such_function", "torch has no torch.no_such_function"),
        ("relu", torch.relu_, "changes its tensor in place"),
        ("relu", torch.matmul, "the edited step does not run: TypeError"),
        ("chunk", torch.relu, "one call can't stand for all of them"),
    ],
)
def test_substitute_refuses(name, call, reason):
    tape = record(Net(between=lambda h: torch.cat(torch.relu(h).chunk(2, -1), -1)))
    with pytest.raises(Refused, match=reason):
        substitute(tape, find(tape, name)[0], call)


# -- insert


def test_layer_norm_after_a_layer():
    tape = record(Net())
    hidden = tape.ops[find(tape, "linear")[0]].outputs[0]
    edited = insert(tape, hidden, F.layer_norm, (16,))
    assert same(edited, Net(between=lambda h: F.relu(F.layer_norm(h, (16,)))))
    assert edited.ops[find(edited, "layer_norm")[0]].module == "hidden"


def test_a_residual_and_a_scaled_input():
    tape = record(Net())
    relu = tape.ops[find(tape, "relu")[0]]
    edited = insert(tape, relu.outputs[0], torch.add, Ref(relu.inputs[0]))
    edited = insert(edited, edited.named("x").index, torch.div, 255.0)
    x, y = batch()
    assert same(edited, Net(between=lambda h: F.relu(h) + h), data=(x / 255.0, y))
    assert edited.reason.count("inserted") == 2


def test_squeeze_into_one_op_repairs_a_broadcast_loss():
    net = Net(layers=(20, 16, 1))
    x, _ = batch()
    y = torch.randn(8, generator=torch.Generator().manual_seed(2))
    with pytest.warns(UserWarning, match="target size"):
        tape = record(net, F.mse_loss, (x, y))
    loss = find(tape, "mse_loss")[0]
    edited = insert(tape, tape.ops[loss].inputs[0], torch.squeeze, -1, into=loss)
    assert same(edited, Net(layers=(20, 16, 1), end=lambda h: h.squeeze(-1)), F.mse_loss, (x, y))
    assert edited.values[edited.ops[find(edited, "mse_loss")[0]].inputs[0]].shape == (8,)


def test_what_is_inserted_after_the_loss_is_where_the_backward_begins():
    tape = record(Net())
    edited = insert(tape, tape.losses[0], torch.mul, 3.0)
    assert same(edited, Net(), lambda out, y: F.cross_entropy(out, y) * 3.0)


@pytest.mark.parametrize(
    ("after", "into", "args", "reason"),
    [
        (999, None, (1.0,), "has no value 999 that is used"),
        (None, 0, (1.0,), "is not given value"),
        (None, None, (torch.ones(3),), "does not run: RuntimeError"),
        (None, None, (Ref(999),), "does not run: KeyError"),
    ],
)
def test_insert_refuses(after, into, args, reason):
    tape = record(Net())
    after = tape.ops[find(tape, "relu")[0]].outputs[0] if after is None else after
    with pytest.raises(Refused, match=reason):
        insert(tape, after, torch.mul, *args, into=into)


# -- arguments


def test_reduction_axis_and_probability():
    def net(dim, p):
        return Net(between=lambda h: F.dropout(h, p, True), end=lambda h: torch.softmax(h, dim))

    tape = record(net(0, 0.5))
    edited = with_argument(tape, find(tape, "cross_entropy")[0], "reduction", "sum")
    edited = with_argument(edited, find(edited, "softmax")[0], "dim", 1)
    edited = with_argument(edited, find(edited, "dropout")[0], "p", 0.0)
    assert same(edited, net(1, 0.0), lambda out, y: F.cross_entropy(out, y, reduction="sum"))
    assert "reduction='sum' in torch.nn.functional.cross_entropy at " in edited.reason


def test_an_argument_of_a_tensor_method():
    tape = record(Net(end=lambda h: h.log_softmax(0)), F.nll_loss)
    edited = with_argument(tape, find(tape, "log_softmax")[0], "dim", 1)
    assert same(edited, Net(end=lambda h: h.log_softmax(1)), F.nll_loss)


@pytest.mark.parametrize(
    ("op", "name", "value", "reason"),
    [
        ("cross_entropy", "colour", 1, "unexpected keyword argument 'colour'"),
        ("cross_entropy", "reduction", "no", "does not run: ValueError: no is not a valid value"),
        ("cross_entropy", "target", 3, "target of torch.nn.functional.cross_entropy is a tensor"),
        ("softmax", "dim", 5, "does not run: IndexError"),
    ],
)
def test_with_argument_refuses(op, name, value, reason):
    tape = record(Net(end=softmaxed))
    with pytest.raises(Refused, match=reason):
        with_argument(tape, find(tape, op)[0], name, value)


# -- reattach


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("detach", lambda h: F.relu(h).detach()),
        ("data", lambda h: F.relu(h).data),
        ("relu", in_no_grad),
        ("detach_", lambda h: F.relu(h).detach_()),
        ("new_tensor", lambda h: (r := F.relu(h)).new_tensor(r)),
        ("tensor", lambda h: torch.tensor(F.relu(h))),
    ],
)
@pytest.mark.filterwarnings("ignore:To copy construct")
def test_reattached_gives_the_gradients_of_the_code_without_the_cut(name, cut):
    tape = record(Net(between=cut))
    hidden = tape.leaves.get(next((n for n, leaf in tape.leaves.items() if leaf.name == "hidden.weight"), -1))
    assert hidden is None or replay(tape).gradients[hidden.index] is None
    edited = reattach(tape, *find(tape, name))
    assert same(edited, Net())
    assert edited.reason.startswith("edited: reattached torch.")


def test_a_detach_in_a_chain_under_no_grad():
    def cut(h):
        with torch.no_grad():
            a = h * 2
            return F.relu(a).detach()

    tape = record(Net(between=cut))
    cuts = [i for i, op in enumerate(tape.ops) if not op.context.grad]
    assert same(reattach(tape, *cuts), Net(between=lambda h: F.relu(h * 2)))


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_scalars_that_were_put_into_a_new_tensor():
    def total(mean, end):
        def loss(out, y):
            return F.cross_entropy(out, y) + end([mean(out), out.std()]).sum()

        return loss

    tape = record(Net(), total(torch.mean, torch.tensor))
    assert same(reattach(tape, *find(tape, "torch.tensor")), Net(), total(torch.mean, torch.stack))


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_reattach_refuses_what_is_no_cut():
    tape = record(Net(end=lambda h: h + torch.tensor([h.mean(), 1.0]).sum()))
    with pytest.raises(Refused, match=r"relu at .* does not cut the graph$"):
        reattach(tape, *find(tape, "relu"))
    with pytest.raises(Refused, match="makes a tensor from numbers, which nothing reattaches"):
        reattach(tape, *find(tape, "torch.tensor"))


def test_reattach_refuses_a_value_that_left_torch_and_says_where():
    tape = record(Net(between=lambda h: h * h.mean().item()))
    with pytest.raises(Refused, match=r"torch.Tensor.item at .*test_edit.py:\d+ took a value out of torch"):
        reattach(tape, *find(tape, "mul"))
    tape = record(Net(between=lambda h: h + torch.from_numpy(h.detach().numpy().copy())))
    with pytest.raises(Refused, match=r"torch.Tensor.numpy at .* took a value out of torch"):
        reattach(tape, *find(tape, "add"))


def test_reattach_refuses_what_has_no_derivative():
    def cut(h):
        with torch.no_grad():
            best = h.argmax(-1)
        return h * best[:, None]

    tape = record(Net(between=cut))
    with pytest.raises(Refused, match=r"has no derivative: it gives torch\.int64"):
        reattach(tape, *find(tape, "argmax"))


def test_reattach_refuses_where_nothing_wants_a_gradient():
    tape = record(Net(between=lambda h: h), data=(batch()[0], batch()[1]))
    x = tape.named("x").index
    edited = insert(tape, x, torch.detach)
    with pytest.raises(Refused, match=r"nothing that leads to torch\.detach"):
        reattach(edited, *find(edited, "detach"))


# -- leaves


def frozen():
    net = Net()
    net.hidden.requires_grad_(False)
    return net


def test_unfreeze_gives_the_gradient_and_the_optimizer_trains_it():
    net = frozen()
    tape = record(net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
    weight, bias = tape.named("hidden.weight").index, tape.named("hidden.bias").index
    assert weight not in tape.setup.groups[0]["params"]
    edited = unfreeze(unfreeze(tape, weight), bias)
    assert same(edited, Net())
    assert {weight, bias} <= set(edited.setup.groups[0]["params"])
    assert tape.leaves[weight].requires_grad is False
    assert edited.reason.startswith("edited: unfroze hidden.weight; unfroze hidden.bias")


def test_unfreeze_refuses():
    tape = record(frozen())
    with pytest.raises(Refused, match=r"head\.weight wants a gradient already"):
        unfreeze(tape, tape.named("head.weight").index)
    with pytest.raises(Refused, match=r"holds torch\.int64"):
        unfreeze(tape, tape.of(Role.TARGET)[0].index)
    with pytest.raises(Refused, match="value 999 is not a leaf"):
        unfreeze(tape, 999)


@pytest.mark.parametrize("scheme", ["kaiming", "xavier", "zeros"])
def test_reinitialise_draws_from_a_generator_of_its_own(scheme):
    tape = record(Net())
    weight = tape.named("hidden.weight")
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    edited = reinitialise(tape, weight.index, scheme, seed=3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert random.getstate() == states[2]
    value = edited.leaves[weight.index].value
    limit = {"kaiming": (6 / 20) ** 0.5, "xavier": (6 / 36) ** 0.5, "zeros": 0.0}[scheme]
    assert value.abs().max() <= limit
    assert value.abs().max() >= 0.9 * limit
    assert torch.equal(value, reinitialise(tape, weight.index, scheme, seed=3).leaves[weight.index].value)
    assert torch.equal(tape.leaves[weight.index].value, weight.value)
    model = Net()
    model.hidden.weight.data.copy_(value)
    assert same(edited, model)


def test_reinitialise_with_values_forgets_what_the_optimizer_kept():
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    record(net, optimizer=optimizer)
    optimizer.step()
    optimizer.zero_grad()
    tape = record(net, optimizer=optimizer)
    bias = tape.named("hidden.bias").index
    edited = reinitialise(tape, bias, torch.ones(16))
    assert bias in tape.setup.state
    assert bias not in edited.setup.state
    assert edited.leaves[bias].value.eq(1).all()
    assert edited.values[bias].statistics.mean == 1


def test_reinitialise_refuses():
    tape = record(Net())
    bias = tape.named("hidden.bias").index
    for values, reason in (
        (torch.ones(3), r"has shape \(16,\), the new values \(3,\)"),
        ("kaiming", "has 1 axes; kaiming needs two"),
        ("lecun", "no scheme 'lecun'; there are kaiming, xavier, zeros"),
    ):
        with pytest.raises(Refused, match=reason):
            reinitialise(tape, bias, values)


# -- values of an edited tape


def test_values_are_those_of_the_edited_step():
    tape = record(Net(between=lambda h: F.relu(h).detach()))
    edited = reattach(tape, *find(tape, "detach"))
    relu = edited.ops[find(edited, "relu")[0]].outputs[0]
    assert edited.values[relu].requires_grad
    loss = find(tape, "cross_entropy")[0]
    unreduced = insert(with_argument(tape, loss, "reduction", "sum"), tape.losses[0], torch.div, 8)
    assert unreduced.values[unreduced.losses[0]].shape == ()
    mean = float(replay(tape).losses[0])
    assert unreduced.values[unreduced.losses[0]].statistics.mean == pytest.approx(mean, rel=1e-6)


def test_kept_values_and_gradients_are_those_of_autograd():
    model, (x, y) = Net(between=torch.tanh), batch()
    tape = record(model)
    hidden, tanh = (tape.ops[find(tape, n)[0]].outputs[0] for n in ("linear", "tanh"))
    played = replay(tape, keep=(hidden, tanh, tape.named("x").index))
    a = model.hidden(x)
    b = torch.tanh(a)
    grads = torch.autograd.grad(F.cross_entropy(model.head(b), y), (a, b))
    assert torch.equal(played.values[hidden], a)
    assert torch.equal(played.values[tanh], b)
    assert torch.equal(played.value_gradients[hidden], grads[0])
    assert torch.equal(played.value_gradients[tanh], grads[1])
    assert played.value_gradients[tape.named("x").index] is None
