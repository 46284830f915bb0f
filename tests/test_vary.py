"""A step on other data or in another precision is the step that the same code would make there."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whyloss.tape.edit import Refused
from whyloss.tape.recording import recording
from whyloss.tape.replay import replay
from whyloss.tape.tape import Role
from whyloss.tape.vary import batch_size, batch_subset, in_double, permuted_targets, with_leaves, zeroed_inputs


class Tokens(nn.Module):
    """An embedding, attention over views of the batch, batch norm, dropout."""

    def __init__(self, dropout=0.0, norm=True):
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.qkv = nn.Embedding(30, 16), nn.Linear(16, 48)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.drop, self.head = nn.Dropout(dropout), nn.Linear(16, 5)

    def forward(self, x):
        n, length = x.shape
        q, k, v = self.qkv(self.embed(x)).view(n, length, 2, 24).transpose(1, 2).chunk(3, -1)
        mask = torch.zeros(n, 1, length, length).masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        h = ((q @ k.transpose(-1, -2) / 8**0.5 + mask).softmax(-1) @ v).transpose(1, 2).reshape(n, length, 16)
        return self.head(self.drop(self.norm(h.mean(1))))


def tokens(rows=8):
    g = torch.Generator().manual_seed(1)
    return torch.randint(1, 30, (rows, 6), generator=g), torch.randint(0, 5, (rows,), generator=g)


def vectors(rows=8):
    g = torch.Generator().manual_seed(1)
    return torch.randn(rows, 20, generator=g), torch.randint(0, 5, (rows,), generator=g)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 5))


def record(model, loss=F.cross_entropy, data=None, optimizer=None):
    x, y = tokens() if data is None else data
    with recording(model, optimizer) as step:
        loss(model(x), y).backward()
    tape = step.tape()
    assert tape.faithful, tape.reason
    return tape


def direct(model, loss, data):
    """Loss and gradients by the code itself."""
    model = copy.deepcopy(model)
    model.zero_grad()
    value = loss(model(data[0]), data[1])
    value.backward()
    return value.detach(), {n: p.grad for n, p in model.named_parameters()}


def same(tape, model, loss, data):
    value, gradients = direct(model, loss, data)
    played = replay(tape)
    assert torch.equal(played.losses[0], value)
    for name, g in gradients.items():
        assert torch.equal(played.gradients[tape.named(name).index], g), name
    return True


# -- float64


def cast(h):
    return h.float() + h.to(torch.float32) + torch.zeros(5, dtype=torch.float32) + h.type(torch.FloatTensor)


class Casting(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = nn.Linear(20, 5), nn.LayerNorm(5)

    def forward(self, x):
        return F.softmax(cast(self.norm(self.layer(x).half().float())), -1, dtype=torch.float32).log()


class Autocast(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = mlp()

    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x).float()


@pytest.mark.parametrize(
    ("model", "loss", "data", "tolerance"),
    [
        (Tokens(), F.cross_entropy, tokens(), 1e-6),
        (Tokens(dropout=0.4), F.cross_entropy, tokens(), 1e-6),
        (mlp(), F.cross_entropy, vectors(), 1e-6),
        (nn.Sequential(nn.Unflatten(1, (5, 4)), nn.LSTM(4, 5)), lambda o, y: o[0].square().mean(), vectors(), 1e-6),
        (Casting(), F.nll_loss, vectors(), 1e-3),  # recorded with a cast to float16
        (Autocast(), F.cross_entropy, vectors(), 2e-2),
        (mlp(), lambda o, y: (o + torch.randn_like(o) * torch.rand(5)).square().mean(), vectors(), 1e-6),
    ],
)
def test_in_double_the_loss_is_within_the_rounding_of_the_recorded_precision(model, loss, data, tolerance):
    torch.manual_seed(5)
    tape = record(model, loss, data)
    double = in_double(tape)
    assert double.dtype == torch.float64
    assert torch.get_default_dtype() == torch.float32
    value = float(replay(tape).losses[0])
    assert float(replay(double).losses[0]) == pytest.approx(value, rel=tolerance)
    floats = {v.dtype for v in double.values.values() if v.dtype.is_floating_point}
    assert floats == {torch.float64}
    assert not double.faithful
    assert double.reason == "edited: float64 everywhere"


def test_in_double_is_what_the_code_gives_in_double():
    model = Tokens()
    tape = in_double(record(model))
    torch.set_default_dtype(torch.float64)
    try:
        value, gradients = direct(model.double(), F.cross_entropy, tokens())
    finally:
        torch.set_default_dtype(torch.float32)
    played = replay(tape)
    assert played.losses[0].item() == value.item()
    assert all(torch.equal(played.gradients[tape.named(n).index], g) for n, g in gradients.items())


def test_in_double_takes_the_optimizer_along():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters())
    record(model, data=vectors())
    optimizer.step()
    tape = record(model, data=vectors(), optimizer=optimizer)
    state = in_double(tape).setup.state[tape.named("0.weight").index]
    assert state["exp_avg"].dtype == torch.float64
    assert state["step"].dtype == torch.float32


def test_in_double_refuses_to_reinterpret_bits():
    tape = record(mlp(), lambda o, y: o.view(torch.int32).float().mean() * 0 + o.mean(), vectors())
    with pytest.raises(Refused, match="reads the bits"):
        in_double(tape)


# -- part of the batch


def mean_and_sum(reduction):
    return lambda out, y: F.cross_entropy(out, y, reduction=reduction)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("rows", [[0, 1, 2, 3], [7, 0, -3], [2, 2]])
def test_some_rows_of_the_batch(reduction, rows):
    tape = record(Tokens(), mean_and_sum(reduction))
    part = batch_subset(tape, rows)
    x, y = tokens()
    assert same(part, Tokens(), mean_and_sum(reduction), (x[rows], y[rows]))
    assert part.leaves[part.named("x").index].value.shape == (len(rows), 6)
    assert part.reason == f"edited: {len(rows)} of 8 rows of the batch"


def test_all_rows_give_the_recorded_step():
    tape = record(Tokens())
    assert torch.equal(replay(batch_subset(tape, range(8))).losses[0], replay(tape).losses[0])


class Sized(nn.Module):
    """Writes the size of the batch into calls."""

    def __init__(self, use):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.use = nn.Linear(20, 8), use

    def forward(self, x):
        return self.use(self.layer(x), len(x))


@pytest.mark.parametrize(
    "use",
    [
        lambda h, n: h.view(n, 4, 2).flatten(1),
        lambda h, n: h.view((n, -1)),
        lambda h, n: h.reshape(n, 8),  # as many features as rows: the first axis is the batch
        lambda h, n: h.t().reshape(2, 4, n).sum(0).t(),
        lambda h, n: h + torch.zeros(n, 8),
        lambda h, n: torch.cat((h, h.new_ones(n, 1)), -1),
        lambda h, n: h + torch.ones(1, 8).expand(n, -1),
        lambda h, n: h[torch.arange(n)],
        lambda h, n: h.view(-1, 8),
        lambda h, n: h + torch.arange(8),  # features
        lambda h, n: h * torch.ones(8) + torch.zeros(n, 1),
    ],
)
def test_sizes_in_calls_follow_the_batch(use):
    x, y = vectors()
    y = y.clamp(max=3)
    tape = record(Sized(use), data=(x, y))
    for rows in ([1, 4, 6], [5]):
        assert same(batch_subset(tape, rows), Sized(use), F.cross_entropy, (x[rows], y[rows]))


def test_a_division_by_the_size_of_the_batch_is_named():
    tape = record(mlp(), lambda out, y: F.cross_entropy(out, y, reduction="sum") / 8, vectors())
    part = batch_subset(tape, [0, 1])
    assert part.doubts == ("torch.Tensor.div by 8 may mean the size of the batch, and was left as it is",)
    assert record(mlp(), data=vectors()).doubts == ()


def test_batch_size():
    assert batch_size(record(Tokens())) == 8
    assert batch_size(record(mlp(), lambda out, y: out.mean(), vectors(3))) == 3


@pytest.mark.parametrize(
    ("model", "loss", "data", "rows", "reason"),
    [
        (mlp(), F.cross_entropy, vectors(), [], "the batch has 8 rows"),
        (mlp(), F.cross_entropy, vectors(), [8], "are not some of them"),
        (Sized(lambda h, n: h.view(n * 2, 4).view(-1, 8)), F.cross_entropy, vectors(), [0, 1, 2], "does not run"),
        (
            nn.Sequential(nn.Linear(20, 5), nn.BatchNorm1d(5)),
            F.cross_entropy,
            vectors(),
            [0],
            "more than 1 value per channel",
        ),
    ],
)
def test_batch_subset_refuses(model, loss, data, rows, reason):
    tape = record(model, loss, data)
    with pytest.raises(Refused, match=reason):
        batch_subset(tape, rows)


def test_no_batch_is_refused():
    x, y = vectors()
    tape = record(mlp(), lambda out, t: F.mse_loss(out.sum(0), t), (x, y[:5].float()))
    with pytest.raises(Refused, match="inputs have 8 rows, targets 5"):
        batch_subset(tape, [0])


# -- inputs and targets


def test_inputs_set_to_zero():
    tape = record(mlp(), data=vectors())
    x, y = vectors()
    assert same(zeroed_inputs(tape), mlp(), F.cross_entropy, (torch.zeros_like(x), y))
    tape = record(Tokens())
    assert same(zeroed_inputs(tape), Tokens(), F.cross_entropy, (torch.zeros_like(tokens()[0]), tokens()[1]))


def test_a_target_that_is_the_input_stays():
    torch.manual_seed(0)
    model, x = nn.Linear(20, 20), vectors()[0]
    for view in (lambda t: t, lambda t: t.view(-1), lambda t: t.contiguous().view(-1).contiguous()):

        def loss(out, y, view=view):
            return F.mse_loss(view(out), view(y))

        zeroed = zeroed_inputs(record(model, loss, (x, x)))
        expected = loss(model(torch.zeros_like(x)), x).detach()
        assert torch.equal(replay(zeroed).losses[0], expected)
        assert zeroed.of(Role.TARGET)


def test_masks_stay_and_nothing_else_is_refused():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.layer = nn.Linear(20, 5)

        def forward(self, mask, x=None):
            rows = torch.ones(8, 20) if x is None else x
            return self.layer(rows * mask[:, None])

    mask, (x, y) = torch.tensor([1, 1, 0, 1, 1, 1, 0, 1]), vectors()
    model = Masked()
    with recording(model) as step:
        F.cross_entropy(model(mask, x), y).backward()
    zeroed = zeroed_inputs(step.tape())
    assert torch.equal(zeroed.named("mask").value, mask)
    assert not zeroed.named("x").value.any()
    with pytest.raises(Refused, match="no tensor but masks"):
        zeroed_inputs(record(model, data=(mask, y)))


def test_targets_in_another_order():
    tape = record(mlp(), data=vectors())
    x, y = vectors()
    order = [3, 1, 0, 2, 7, 6, 5, 4]
    assert same(permuted_targets(tape, order), mlp(), F.cross_entropy, (x, y[order]))
    for wrong, reason in (([0, 0, 1], "is no permutation"), ([1, 0], "no target has 2 rows")):
        with pytest.raises(Refused, match=reason):
            permuted_targets(tape, wrong)


def test_other_leaves():
    tape = record(mlp(), data=vectors())
    x, y = vectors(3)
    target = tape.of(Role.TARGET)[0].index
    other = with_leaves(tape, {tape.of(Role.INPUT)[0].index: x, target: y})
    assert same(other, mlp(), F.cross_entropy, (x, y))
    assert other.values[target].shape == (3,)
    bias = torch.full((5,), 0.5)
    changed = with_leaves(tape, {"2.bias": bias})
    bias.zero_()
    assert changed.named("2.bias").value.eq(0.5).all()
    assert not math.isclose(float(replay(changed).losses[0]), 0.0)


def test_other_leaves_are_refused_where_the_step_does_not_run():
    tape = record(mlp(), data=vectors())
    with pytest.raises(Refused, match="no leaf 'colour'"):
        with_leaves(tape, {"colour": torch.ones(1)})
    with pytest.raises(Refused, match=r"other values in 2\.bias: the edited step does not run: RuntimeError"):
        with_leaves(tape, {"2.bias": torch.ones(7)})
