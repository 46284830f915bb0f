"""Training on a tape is the user's own loop on that batch, and leaves no trace in their training."""

import contextlib
import copy
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from whyloss.tape.edit import Refused, drop, find, insert, reattach, reinitialise, unfreeze, with_argument
from whyloss.tape.recording import recording
from whyloss.tape.replay import playing, replay
from whyloss.tape.train import train
from whyloss.tape.vary import in_double


def mlp(*between):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 16), *(between or (nn.Tanh(),)), nn.Linear(16, 5))


def batch(seed=1, rows=16):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 20, generator=g), torch.randint(0, 5, (rows,), generator=g)


def record(model, optimizer, data=None, loss=F.cross_entropy):
    """One step as a tape; model and optimizer are before it again."""
    x, y = batch() if data is None else data
    with restored(model), recording(model, optimizer) as step:
        optimizer.zero_grad()
        loss(model(x), y).backward()
    return step.tape()


@contextlib.contextmanager
def restored(model):
    state = copy.deepcopy(model.state_dict())
    yield
    model.load_state_dict(state)


def own_loop(model, optimizer, steps, batches=None):
    """Losses and final parameters of the user's loop; the model is before it again."""
    with restored(model):
        losses = list(steps_of(model, optimizer, steps, batches))
        parameters = {n: p.detach().clone() for n, p in model.named_parameters()}
    return losses, parameters


def steps_of(model, optimizer, steps, batches):
    batches = batches or [batch()]
    for step in range(steps):
        x, y = batches[step % len(batches)]

        def closure(x=x, y=y):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        if isinstance(optimizer, torch.optim.LBFGS):
            yield optimizer.step(closure).item()
        else:
            yield closure().item()
            optimizer.step()


def equal(trained, losses, parameters):
    assert trained.losses == tuple(losses)
    assert trained.parameters.keys() == parameters.keys()
    return all(torch.equal(trained.parameters[n], p) for n, p in parameters.items())


OPTIMIZERS = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-2),
    "Adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "AdamW fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "Adam tensor rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), foreach=False),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-1, initial_accumulator_value=0.1),
    "LBFGS": lambda p: torch.optim.LBFGS(p, lr=0.5, max_iter=5, line_search_fn="strong_wolfe"),
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("state", ["fresh", "copied"])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_on_the_tape_is_the_users_own_loop(kind, state):
    model = mlp()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for _ in range(3):  # some steps before, so that there is a state

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(batch()[0]), batch()[1])
            loss.backward()
            return loss

        optimizer.step(closure)
    tape = record(model, optimizer)
    assert tape.faithful, tape.reason
    if state == "fresh":
        optimizer = OPTIMIZERS[kind](model.parameters())
    losses, parameters = own_loop(model, optimizer, 7)
    assert equal(train(tape, 7, state=state), losses, parameters)
    assert equal(train(tape, 7, state=state), losses, parameters), "the first training changed the tape"
    assert losses[-1] < losses[0]


def test_groups_keep_their_settings_and_rate_multiplies_them():
    model = mlp()

    def build(factor):
        groups = [{"params": model[0].parameters(), "lr": 0.1 * factor}, {"params": model[2].parameters()}]
        return torch.optim.SGD(groups, lr=0.01 * factor, momentum=0.9)

    tape = record(model, build(1))
    losses, parameters = own_loop(model, build(0.5), 5)
    assert equal(train(tape, 5, rate=0.5), losses, parameters)


def test_sparse_gradients_and_a_parameter_that_is_not_used():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.embed, self.idle, self.head = nn.EmbeddingBag(9, 20, sparse=True), nn.Linear(3, 3), mlp()

        def forward(self, x):
            return self.head(self.embed(x))

    model, data = Net(), (torch.arange(32).reshape(16, 2) % 9, batch()[1])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tape = record(model, optimizer, data)
    losses, parameters = own_loop(model, optimizer, 4, [data])
    used = {n: p for n, p in parameters.items() if "idle" not in n}
    trained = train(tape, 4)
    assert equal(trained, losses, used)
    assert trained.gradients["embed.weight"] > 0


def test_lbfgs_with_parameters_that_are_not_on_the_tape():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.idle, self.net = nn.Linear(3, 3), mlp()

        def forward(self, x):
            return self.net(x)

    model = Net()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)
    own = own_loop(model, optimizer, 3)
    trained = train(record(model, optimizer), 3)
    assert trained.losses == tuple(own[0])
    assert all(torch.equal(p, own[1][n]) for n, p in trained.parameters.items())


class Odd(torch.optim.SGD):
    """Its constructor wants something else, and it keeps things of its own."""

    def __init__(self, model, schedule, *, secret):
        super().__init__(model.parameters(), lr=secret)
        self.schedule, self.factor, self.calls = schedule, 0.5, 0
        self.step = self.step  # as a scheduler leaves it

    def step(self, closure=None):
        self.calls += 1
        for group in self.param_groups:
            group["lr"] *= self.factor if self.calls == 2 else 1.0
        return super().step(closure)


def test_a_subclass_with_an_unusual_constructor():
    model = mlp()
    optimizer = Odd(model, object(), secret=0.2)
    seen = []
    optimizer.register_step_post_hook(lambda *a: seen.append(a))
    with recording(model, optimizer) as step:
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    trained = train(step.tape(), 5)
    assert (seen, optimizer.calls, optimizer.param_groups[0]["lr"]) == ([], 0, 0.2)
    losses, parameters = own_loop(model, optimizer, 5)
    assert equal(trained, losses, parameters)


def test_a_scheduler_on_the_optimizer_changes_nothing():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses, parameters = own_loop(model, optimizer, 5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    with recording(model, optimizer) as step:
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    count = optimizer._step_count if hasattr(optimizer, "_step_count") else None
    assert equal(train(step.tape(), 5), losses, parameters)
    assert count == getattr(optimizer, "_step_count", None)
    assert scheduler.last_epoch == 0


# -- several backward calls, several tapes, buffers


def test_micro_batches_of_one_step():
    model = mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    own = copy.deepcopy((model, optimizer))
    with recording(model, optimizer) as step:
        for seed in (1, 2, 3):
            x, y = batch(seed)
            (F.cross_entropy(model(x), y) / 3).backward()
    trained = train(step.tape(), 4)
    model, optimizer = own
    for i in range(4):
        optimizer.zero_grad()
        losses = []
        for seed in (1, 2, 3):
            x, y = batch(seed)
            losses.append(F.cross_entropy(model(x), y) / 3)
            losses[-1].backward()
        assert trained.losses[i] == pytest.approx(sum(losses).item(), rel=1e-6)
        optimizer.step()
    assert all(torch.equal(trained.parameters[n], p) for n, p in model.named_parameters())


def test_several_tapes_in_turn_share_parameters_by_name():
    model, data = mlp(), [batch(1), batch(2), batch(3)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tapes = [record(model, optimizer, d) for d in data]
    losses, parameters = own_loop(model, optimizer, 8, data)
    trained = train(tapes, 8)
    assert equal(trained, losses, parameters)
    after = replay(tapes[1], trained.on(tapes[1]), backward=False).losses[0]
    assert torch.equal(after, F.cross_entropy(_with(model, parameters)(data[1][0]), data[1][1]))


def _with(model, parameters):
    model = copy.deepcopy(model)
    model.load_state_dict({**model.state_dict(), **parameters})
    return model


def test_a_parameter_that_only_a_later_tape_holds_is_trained():
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.experts = nn.ModuleList([nn.Linear(20, 5), nn.Linear(20, 5)])

        def forward(self, x):
            return self.experts[int(x[0, 0] > 0)](x)

    model = Experts()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    data = [batch(1), batch(2)]
    data = [(x * torch.sign(x[0, 0]) * sign, y) for (x, y), sign in zip(data, (1, -1), strict=True)]
    tapes = [record(model, optimizer, d) for d in data]
    losses, parameters = own_loop(model, optimizer, 6, data)
    assert equal(train(tapes, 6), losses, parameters)


def test_parameters_without_a_name_go_by_their_place_in_the_optimizer():
    x, y = batch()
    model, scale = mlp(), torch.ones(5, requires_grad=True)
    optimizer = torch.optim.SGD([*model.parameters(), scale], lr=0.1)
    tapes = []
    for _ in range(2):
        with recording(model, optimizer) as step:
            F.cross_entropy(model(x) * scale, y).backward()
        tapes.append(step.tape())
    trained = train(tapes, 3)
    assert list(trained.parameters) == ["0.weight", "0.bias", "2.weight", "2.bias", "group 0, parameter 4"]
    assert trained.gradients["group 0, parameter 4"] > 0
    assert not trained.parameters["group 0, parameter 4"].eq(1).any()
    assert scale.eq(1).all()


def test_buffers_are_carried_on_where_asked_for():
    class Drifting(nn.Module):
        """What it gives depends on the running mean, in training mode, too."""

        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("mean", torch.zeros(20))

        def forward(self, x):
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
            return self.net(x - self.mean)

    model = Drifting()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tape = record(model, optimizer)
    assert tape.faithful, tape.reason
    losses, parameters = own_loop(model, optimizer, 5)
    carried, anew = train(tape, 5, carry_buffers=True), train(tape, 5)
    assert equal(carried, losses, parameters)
    assert anew.losses[:1] == carried.losses[:1]
    assert anew.losses[1] != carried.losses[1]
    assert tape.named("mean").value.eq(0).all()


def test_a_leaf_stays_as_recorded_where_a_view_of_it_is_changed_through_contiguous():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("seen", torch.zeros(4, 5))

        def forward(self, x):
            with torch.no_grad():
                self.seen.view(-1).contiguous().add_(1.0)
            return self.net(x) * self.seen.sum()

    model = Counting()
    tape = record(model, torch.optim.SGD(model.parameters(), lr=0.0))
    assert tape.faithful, tape.reason
    assert len(set(train(tape, 3).losses)) == 1
    assert tape.named("seen").value.eq(0).all()


def test_batch_norm_and_the_same_dropout_each_step():
    model = mlp(nn.BatchNorm1d(16), nn.Dropout(0.5))
    tape = record(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    trained = train(tape, 150)
    assert trained.losses[-1] < 0.05


# -- what an experiment reads


def test_a_transformer_memorises_its_batch():
    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
            self.embed, self.head = nn.Embedding(50, 32), nn.Linear(32, 5)
            self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x):
            return self.head(self.blocks(self.embed(x)).mean(1))

    model, data = Transformer(), (torch.randint(50, (8, 12)), torch.randint(5, (8,)))
    trained = train(record(model, torch.optim.AdamW(model.parameters(), lr=1e-3), data), 300)
    assert trained.losses[0] > 1
    assert trained.losses[-1] < 0.01


def test_softmax_before_cross_entropy_stalls_and_dropped_it_learns():
    model = nn.Sequential(mlp(nn.ReLU()), nn.Softmax(-1))
    tape = record(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    assert train(tape, 200).losses[-1] > 0.9
    assert train(drop(tape, *find(tape, "softmax")), 200).losses[-1] < 0.01


def test_a_detached_layer_gets_no_gradient_and_reattached_it_does():
    class Detached(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.hidden, self.head = nn.Linear(20, 64), nn.Linear(64, 5)

        def forward(self, x):
            return self.head(F.relu(self.hidden(x)).detach())

    model = Detached()
    tape = record(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    as_recorded = train(tape, 1).gradients
    assert as_recorded["hidden.weight"] is None
    assert as_recorded["head.weight"] > 0
    edited = reattach(tape, *find(tape, "detach"))
    repaired = train(edited, 200)
    assert repaired.losses[-1] < 0.01
    x, y = batch()
    model.zero_grad()
    F.cross_entropy(model.head(F.relu(model.hidden(x))), y).backward()
    for name, p in model.named_parameters():
        assert repaired.gradients[name] == float(p.grad.norm()), name


def test_unfrozen_and_reinitialised_leaves_are_trained():
    model = mlp()
    model[0].requires_grad_(False)
    tape = record(model, torch.optim.Adam(model.parameters(), lr=1e-2))
    assert "0.weight" not in train(tape, 1).gradients
    edited = unfreeze(tape, tape.named("0.weight").index)
    trained = train(reinitialise(edited, tape.named("0.weight").index, "xavier"), 100, state="copied")
    assert trained.gradients["0.weight"] > 0
    assert trained.losses[-1] < train(tape, 100).losses[-1]


def test_a_tape_in_double_is_trained_in_double():
    model = mlp()
    for build in (torch.optim.AdamW, torch.optim.Adagrad):
        optimizer = build(model.parameters(), lr=1e-2)
        tape = record(model, optimizer)
        trained = train(in_double(tape), 20, state="copied" if build is torch.optim.Adagrad else "fresh")
        assert trained.losses == pytest.approx(train(tape, 20).losses, rel=1e-4)
        assert {p.dtype for p in trained.parameters.values()} == {torch.float64}


def test_no_steps():
    model = mlp()
    trained = train(record(model, torch.optim.SGD(model.parameters(), lr=0.1)), 0)
    assert (trained.losses, trained.gradients) == ((), {})
    assert torch.equal(trained.parameters["0.weight"], model[0].weight)


# -- what is refused


class Forgetful(torch.optim.SGD):
    def __setstate__(self, state):  # deepcopy and pickle fail, too
        raise KeyError("secret")


def test_refused():
    model = mlp()
    with recording(model) as step:
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, optimizer) as other:
        F.cross_entropy(model(batch()[0]), batch()[1]).backward()
    for tapes, state, reason in (
        (step.tape(), "fresh", "no optimizer was recorded"),
        ([], "fresh", "there is no tape"),
        (other.tape(state=False), "copied", "the state of the optimizer was not recorded"),
        ([record(model, optimizer), record(model, torch.optim.Adam(model.parameters()))], "fresh", "different optim"),
        (record(model, Forgetful(model.parameters())), "fresh", "Forgetful can't be rebuilt: KeyError"),
    ):
        with pytest.raises(Refused, match=reason):
            train(tapes, 1, state=state)


# -- nothing of the user's is touched


def snapshot(model, optimizer):
    """Everything that must be bit for bit as before."""
    tensors = [*model.parameters(), *model.buffers()]
    state = copy.deepcopy(optimizer.state_dict())
    return (
        [t.detach().clone() for t in tensors],
        [None if t.grad is None else t.grad.clone() for t in tensors],
        [t._version for t in tensors],
        state,
        torch.get_rng_state(),
        np.random.get_state()[1].copy(),
        random.getstate(),
        (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()),
        (torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu"), torch.is_autocast_cache_enabled()),
        (model.training, playing(), torch._C._len_torch_function_stack()),
    )


def equal_bits(a, b):
    if isinstance(a, torch.Tensor | np.ndarray):
        return a.shape == b.shape and bool((a == b).all())
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal_bits(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(equal_bits(x, y) for x, y in zip(a, b, strict=True))
    return a == b


class Failing(torch.autograd.Function):
    """Raises at the third call of its backward."""

    calls = 0

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        Failing.calls += 1
        if Failing.calls == 4:  # the recorded step, its proof, and two steps before it
            raise ArithmeticError("the fourth")
        return gradient * 2


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "around",
    [
        torch.enable_grad,
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
    ],
)
def test_nothing_of_the_users_changes_also_when_an_op_raises(around, fails):
    Failing.calls = 0 if fails else -100
    model = mlp(nn.BatchNorm1d(16), nn.Dropout(0.1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x, y = batch()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    with recording(model, optimizer) as step:
        optimizer.zero_grad()
        F.cross_entropy(Failing.apply(model(x)), y).backward()
    tape = step.tape()
    assert tape.faithful, tape.reason
    torch.set_default_dtype(torch.float64)
    try:
        with around():
            before = snapshot(model, optimizer)
            if fails:
                with pytest.raises(ArithmeticError, match="the fourth"):
                    train(tape, 10, state="copied", carry_buffers=True)
            else:
                train(tape, 10, state="copied", carry_buffers=True)
            after = snapshot(model, optimizer)
    finally:
        torch.set_default_dtype(torch.float32)
    for a, b in zip(before, after, strict=True):
        assert equal_bits(a, b)
    assert all(g is None or g.any() for g in after[1])


def test_the_losses_do_not_depend_on_what_surrounds_the_call():
    model = mlp()
    tape = record(model, torch.optim.LBFGS(model.parameters()))
    plain = train(tape, 3)
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            inside = train(tape, 3)
    finally:
        torch.set_default_dtype(torch.float32)
    assert equal(inside, plain.losses, plain.parameters)


def test_edited_tapes_can_be_trained_one_after_the_other():
    model = mlp(nn.ReLU())
    tape = record(model, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda o, y: F.cross_entropy(o, y) * 3)
    summed = with_argument(tape, find(tape, "cross_entropy")[0], "reduction", "sum")
    mean = insert(summed, summed.ops[find(summed, "cross_entropy")[0]].outputs[0], torch.div, 16)
    assert train(mean, 20).losses == pytest.approx(train(tape, 20).losses, rel=1e-4)
    assert train(summed, 1).losses[0] == pytest.approx(16 * train(tape, 1).losses[0], rel=1e-5)
