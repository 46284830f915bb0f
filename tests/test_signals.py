"""Every signal against a calculation of its own, and what observing costs, counted in calls."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from training import batch, mlp, observed, train
from whyloss.core.clipping import clip_by_norm


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def norm(tensors):
    return math.sqrt(sum(t.double().square().sum().item() for t in tensors))


class Recorder:
    """A plain loop that keeps clones of everything, for comparison."""

    def __init__(self, model, optimizer, limit=None):
        self.model, self.optimizer, self.limit = model, optimizer, limit
        self.losses, self.grads, self.before, self.after = [], [], [], []

    def run(self, steps, data=None):
        for step in range(steps):
            x, y = batch(seed=step) if data is None else data
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.grads.append({n: p.grad.clone() for n, p in self.model.named_parameters()})
            if self.limit is not None:
                nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
            self.before.append({n: p.detach().clone() for n, p in self.model.named_parameters()})
            self.optimizer.step()
            self.after.append({n: p.detach().clone() for n, p in self.model.named_parameters()})
            self.losses.append(loss.item())
        return self


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_losses_gradients_weights_and_updates_are_the_true_ones(tmp_path, kind):
    """Norms in float64 of clones taken by the loop itself; the update is what really moved."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        own = Recorder(model, kind(model.parameters(), lr=0.05, weight_decay=0.1)).run(4)
    assert seen.values("loss/train") == pytest.approx(own.losses)
    for name, _ in model.named_parameters():
        assert seen.values(f"grad/norm[{name}]") == pytest.approx([norm([g[name]]) for g in own.grads], rel=1e-5)
        assert seen.values(f"weight/norm[{name}]") == pytest.approx([norm([w[name]]) for w in own.before], rel=1e-5)
        moved = [norm([a[name] - b[name]]) for a, b in zip(own.after, own.before, strict=True)]
        assert seen.values(f"update/norm[{name}]") == pytest.approx(moved, rel=1e-4)
    assert seen.values("grad/total") == pytest.approx([norm(g.values()) for g in own.grads], rel=1e-5)


def test_a_clipped_gradient_has_both_its_norms(tmp_path):
    """Before clipping in clip/norm, as the optimizer got it in grad/norm."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        own = Recorder(model, sgd(model), limit=0.05).run(3)
    flat = [torch.cat([t.flatten() for t in g.values()]).double().numpy() for g in own.grads]
    clipped = [float((clip_by_norm(f, 0.05) ** 2).sum() ** 0.5) for f in flat]
    assert seen.values("clip/norm") == pytest.approx([norm(g.values()) for g in own.grads], rel=1e-5)
    assert seen.values("grad/total") == pytest.approx(clipped, rel=1e-3)


def test_the_spread_of_rows_tells_equal_units(tmp_path):
    """‖W − first row‖ / ‖W‖, 0 for a weight whose rows are the same."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        with torch.no_grad():
            model[0].weight[:] = model[0].weight[0].clone()
        w = model[2].weight.detach().double().clone()
        train(model, sgd(model), 1)
    assert seen.values("rows/spread[0.weight]") == [0]
    assert seen.values("rows/spread[2.weight]") == pytest.approx([norm([w - w[:1]]) / norm([w])])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_units_of_a_recurrent_layer_are_compared_within_each_gate(tmp_path, kind):
    """The gates start apart, the eight units of each are the same."""
    with observed(tmp_path) as seen:
        model = Recurrent(kind(3, 8))
        with torch.no_grad():
            for p in model.rnn.parameters():
                p.copy_(p.unflatten(0, (-1, 8))[:, :1].expand(-1, 8, *p.shape[1:]).reshape(p.shape))
        optimizer = sgd(model)
        model(torch.randn(5, 2, 3)).square().mean().backward()
        optimizer.step()
    assert seen.values("rows/spread[rnn.weight_ih_l0]") == [0]
    assert seen.values("rows/spread[rnn.weight_hh_l0]") == [0]


class Recurrent(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn, self.head = rnn, nn.Linear(8, 4)

    def forward(self, x):
        return self.head(self.rnn(x)[0][-1])


def test_a_weight_of_zeros_has_no_spread(tmp_path):
    """0 / 0 is 0 here: its rows are the same."""
    with observed(tmp_path) as seen:
        model = nn.Linear(4, 3)
        nn.init.zeros_(model.weight)
        train(model, sgd(model), 1)
    assert seen.values("rows/spread[weight]") == [0]


@pytest.mark.parametrize("rows", [1, 5, 20, 32])
def test_activations_of_a_small_batch_are_exact(tmp_path, rows):
    """Up to 32 examples the sketch is the whole output."""
    kept = []
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        x, y = batch(rows)
        with torch.no_grad():
            kept = [model[:2](x).double(), model[:3](x).double()]
        train(model, sgd(model), 1, (x, y))
    for slot, out in (("1", kept[0]), ("2", kept[1])):
        figures = [seen.values(f"activation/{part}[{slot}]")[0] for part in ("mean", "std", "low", "high", "zeros")]
        zeros = (out == 0).double().mean().item()
        own = [out.mean().item(), out.std(correction=0).item(), out.min().item(), out.max().item(), zeros]
        assert figures == pytest.approx(own, rel=1e-5)


def test_activations_far_from_zero_keep_their_spread(tmp_path):
    """mean 1000, std 0.01: nothing cancels."""
    with observed(tmp_path) as seen:
        model = nn.Linear(4, 8)
        with torch.no_grad():
            model.weight.mul_(0.01)
            model.bias.copy_(torch.full((8,), 1000.0))
            out = model(batch(20)[0]).double()
        train(model, sgd(model), 1, (batch(20)[0], torch.zeros(20, dtype=torch.long)))
    # the distance between two float32 numbers near 1000 is 6e-5
    assert seen.values("activation/std[]") == pytest.approx([out.std(correction=0).item()], rel=1e-2)


def test_a_large_batch_is_sketched_within_its_noise(tmp_path):
    """32 of 4096 rows: a standard error of a sixth of the spread."""
    with observed(tmp_path) as seen:
        model = mlp(4, 64, 3)
        x, y = batch(4096)
        out = model[0](x).detach()
        train(model, sgd(model), 1, (x, y))
    assert seen.values("activation/std[0]")[0] == pytest.approx(out.std().item(), rel=0.15)


def test_images_are_sketched_by_channel(tmp_path):
    """A channel that is 0 everywhere is one dead unit of four, wherever one looks."""
    with observed(tmp_path) as seen:
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 3))
        with torch.no_grad():
            model[0].bias[:] = torch.tensor([-100.0, 100.0, 100.0, 100.0])
        train(model, sgd(model, lr=1e-6), 6, (torch.randn(16, 1, 8, 8), torch.randint(0, 3, (16,))))
    assert seen.values("activation/dead[1]") == [0.25] * 6
    assert seen.values("activation/zeros[1]") == [0.25] * 6


def dead_layer(dead, sparse, units=20, examples=256):
    """A frozen layer of which `dead` units are never above 0 and `sparse` are at one of 256 examples, each another."""
    x = torch.eye(examples)
    layer = nn.Linear(examples, units)
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.zero_()
        layer.weight[:dead] = -1.0
        for i in range(sparse):
            layer.weight[dead + i] = -1.0
            layer.weight[dead + i, (37 * i + 5) % examples] = 1.0
    layer.requires_grad_(False)
    return nn.Sequential(layer, nn.ReLU(), nn.Linear(units, 3)), (x, torch.randint(0, 3, (examples,)))


def test_the_share_of_dead_units_is_exact(tmp_path):
    """Units that are seldom active are not counted, once all examples are looked at."""
    with observed(tmp_path) as seen:
        model, data = dead_layer(dead=6, sparse=5)
        train(model, sgd(model, lr=1e-3), 140, data)
    exact = [bool(e) for e in seen.values("activation/exact[1]")]
    shares = seen.values("activation/dead[1]")
    assert exact.index(True) <= 11  # suspected after ten observed steps
    assert {s for s, e in zip(shares, exact, strict=True) if e} == {6 / 20}
    assert seen.values("activation/window[1]")[-1] >= 20


def test_a_layer_without_dead_units_is_not_suspected(tmp_path):
    """Healthy ReLUs cost no look at all examples."""
    with observed(tmp_path) as seen:
        model = mlp(4, 32, 3)
        train(model, sgd(model), 30)
    assert set(seen.values("activation/exact[1]")) == {0}


def test_the_rows_whose_gradient_is_always_zero_are_counted(tmp_path):
    """For the weights of suspected layers: a dead unit's row gets no gradient."""
    with observed(tmp_path) as seen:
        model = mlp(4, 20, 3)
        with torch.no_grad():
            model[0].bias[:5], model[0].bias[5:] = -100.0, 3.0  # the others are on for most examples
        train(model, sgd(model, lr=1e-3), 60)
    rows = seen.values("gradient/dead_rows[0.weight]")
    assert rows[-1] == 5 / 20
    assert seen.values("activation/dead[1]")[-1] == 5 / 20


def test_an_activation_after_which_something_works_in_place_is_as_it_was(tmp_path):
    """The sketch is taken at once: ReLU(inplace) changes what the layer before has put out."""
    with observed(tmp_path) as seen:
        model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))
        x, y = batch(20)
        with torch.no_grad():
            low = model[0](x).min().item()
        train(model, sgd(model), 1, (x, y))
    assert seen.values("activation/low[0]") == pytest.approx([low])
    assert seen.values("activation/zeros[0]") == [0]


def test_a_module_that_did_not_run_has_no_figures_at_that_step(tmp_path):
    """What it put out the last time is not taken for new."""

    class Skipping(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.runs = nn.Linear(4, 3), nn.Linear(3, 3), 0

        def forward(self, x):
            self.runs += 1
            return self.b(self.a(x)) if self.runs % 2 else self.a(x)

    with observed(tmp_path) as seen:
        model = Skipping()
        train(model, sgd(model), 6)
    assert seen.trace.signal("activation/std[b]").steps.tolist() == [0, 2, 4]
    assert seen.trace.signal("activation/std[a]").steps.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_root_that_is_never_called_is_still_watched(tmp_path):
    """A LightningModule's training_step calls the parts."""

    class Lit(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.head = mlp(4, 8, 8), nn.Linear(8, 3)

        def training_step(self, x, y):
            return F.cross_entropy(self.head(self.net(x)), y)

    with observed(tmp_path) as seen:
        model = Lit()
        optimizer = sgd(model)
        for _ in range(6):
            optimizer.zero_grad()
            model.training_step(*batch()).backward()
            optimizer.step()
    assert [m.slots for m in seen.trace.modules] == [("net.0",), ("net.1",), ("net.2",), ("head",)]
    assert len(seen.values("activation/std[head]")) == 6


def test_entropy_of_the_labels(tmp_path):
    """Pooled over all observed targets; ignored ones are left out."""
    targets = [torch.tensor([0, 0, 1, 2]), torch.tensor([0, 1, -100, -100])]
    with observed(tmp_path) as seen:
        model = mlp(4, 3)
        optimizer = sgd(model)
        for y in targets:
            train(model, optimizer, 1, (batch(4)[0], y))
    shares = [torch.tensor([2, 1, 1.0]) / 4, torch.tensor([3, 2, 1.0]) / 6]
    assert seen.values("target/entropy") == pytest.approx([-(s * s.log()).sum().item() for s in shares], rel=1e-6)


def test_entropy_of_binary_labels(tmp_path):
    """The share of positives over all of them."""
    y = torch.tensor([[1.0], [0.0], [0.0], [0.0]])
    with observed(tmp_path) as seen:
        model = mlp(4, 1)
        train(model, sgd(model), 1, (batch(4)[0], y), F.binary_cross_entropy_with_logits)
    assert seen.values("target/entropy") == pytest.approx([-(0.25 * math.log(0.25) + 0.75 * math.log(0.75))])
    assert seen.trace.objectives[0].kind == "binary_cross_entropy_with_logits"


def test_variance_of_the_targets(tmp_path):
    """Of each element over the examples, averaged: the loss of the best constant prediction."""
    y = torch.randn(32, 2) * torch.tensor([1.0, 10.0]) + 1e4
    with observed(tmp_path) as seen:
        model = mlp(4, 2)
        optimizer = sgd(model, lr=1e-9)
        for part in y.split(8):
            train(model, optimizer, 1, (batch(8)[0], part), F.mse_loss)
    assert seen.values("target/variance")[-1] == pytest.approx(y.double().var(0, correction=0).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("loss", "kind", "direct"),
    [
        (lambda o, y: F.cross_entropy(o, y), "cross_entropy", True),
        (lambda o, y: F.cross_entropy(o, y) / 4, "cross_entropy", True),
        (lambda o, y: F.cross_entropy(o, y) + 0.1 * o.square().mean(), "cross_entropy", False),
        (lambda o, y: F.cross_entropy(o, y, label_smoothing=0.1), "cross_entropy", False),
        (lambda o, y: F.nll_loss(o.softmax(1).log(), y), "nll_loss", True),
        (lambda o, y: F.mse_loss(o, F.one_hot(y, 3).float()), "mse_loss", True),
    ],
)
def test_the_objective_and_its_own_value(tmp_path, loss, kind, direct):
    """Whatever is added to it or made of it."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        x, y = batch()
        with torch.no_grad():
            own = F.mse_loss(model(x), F.one_hot(y, 3).float()) if kind == "mse_loss" else F.cross_entropy(model(x), y)
        train(model, sgd(model), 1, (x, y), loss)
    (objective,) = seen.trace.objectives
    assert (objective.kind, objective.direct, objective.single) == (kind, direct, True)
    assert objective.classes == (None if kind == "mse_loss" else 3)
    assert seen.values("objective/value") == pytest.approx([own.item()])


def test_the_objective_of_accumulated_losses_is_their_mean(tmp_path):
    """As loss/train is."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        losses = []
        for micro in range(4):
            x, y = batch(seed=micro)
            loss = F.cross_entropy(model(x), y)
            losses.append(loss.item())
            (loss / 4).backward()
        optimizer.step()
    assert seen.values("objective/value") == pytest.approx([sum(losses) / 4])
    assert seen.values("loss/train") == pytest.approx([sum(losses) / 16])


@pytest.mark.filterwarnings("error")
def test_losses_with_parameters_are_not_recomputed(tmp_path):
    """huber with its delta, kl_div with its reductions: their value is not known, and nothing warns."""
    for loss in (
        lambda o, y: F.huber_loss(o, F.one_hot(y, 3).float(), delta=0.1),
        lambda o, y: F.kl_div(o.log_softmax(1), F.one_hot(y, 3).float(), reduction="batchmean"),
    ):
        with observed(tmp_path / str(id(loss))) as seen:
            model = mlp(4, 8, 3)
            train(model, sgd(model), 1, loss=loss)
        assert seen.values("objective/value") is None


def test_the_first_values_are_those_before_the_first_update(tmp_path):
    """A checkpoint that is loaded after the optimizer was built counts."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        model.load_state_dict(mlp(4, 8, 3).state_dict())
        own = {n: p.detach().double().clone() for n, p in model.named_parameters()}
        train(model, optimizer, 3)
    for t in seen.trace.tensors:
        v = own[t.name]
        figures = [v.mean().item(), v.std(correction=0).item(), v.abs().max().item()]
        assert [t.mean, t.std, t.largest] == pytest.approx(figures, rel=1e-5)


def test_settings_and_seed_are_noted(tmp_path):
    """What the optimizer was built with, and what the script gave to manual_seed; nothing where it gave none."""
    torch.manual_seed(1234)
    with observed(tmp_path) as seen:
        model = mlp(4, 3)
        train(model, torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, nesterov=True), 1)
    settings = seen.trace.settings
    assert {k: settings[k] for k in ("lr", "momentum", "nesterov")} == {"lr": 0.5, "momentum": 0.9, "nesterov": True}
    assert seen.run.facts.seeds == (1234,)
    assert seen.run.facts.dtype == "float32"


def test_a_tensor_as_learning_rate_is_read(tmp_path):
    """Capturable optimizers keep it on the device."""
    with observed(tmp_path) as seen:
        model = mlp(4, 3)
        train(model, torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25)), 2)
    assert seen.values("lr[0]") == [0.25, 0.25]


def test_a_loss_that_is_not_finite_is_recorded_as_it_is(tmp_path):
    """NaN of the training is no missing value."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        train(model, sgd(model), 2, loss=lambda o, y: F.cross_entropy(o, y) * float("nan"))
    assert [math.isnan(v) for v in seen.values("loss/train")] == [True, True]
    assert [math.isnan(v) for v in seen.values("grad/norm[0.weight]")] == [True, True]


# -- cost


class Ops(TorchDispatchMode):
    """Counts the operations that reach the device."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))

    @property
    def foreach(self):
        return [name for name in self.seen if name.startswith("_foreach")]


class Many(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(layers))

    def forward(self, x):
        return sum(layer(x) for layer in self.layers)


def ops_of_one_step(folder, layers, step, watched):
    """Operations within optimizer.step() of a plain SGD, hooks of ours included, at one step."""
    from contextlib import nullcontext

    with observed(folder / f"{layers}-{step}") if watched else nullcontext():
        model = Many(layers)
        optimizer = sgd(model, foreach=False)
        train(model, optimizer, step, (torch.randn(64, 4), torch.zeros(64, dtype=torch.long)))
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(8, 4)), torch.zeros(8, dtype=torch.long)).backward()
        with Ops() as ops:
            optimizer.step()
    return ops


@pytest.mark.parametrize("step", [4, 5, 40])
def test_an_observed_step_has_few_foreach_calls_whatever_the_tensors(tmp_path, step):
    """At most eight a device and dtype, and no other operation that grows with the number of tensors."""
    few, many = (ops_of_one_step(tmp_path, n, step, True) for n in (10, 200))
    plain = [len(ops_of_one_step(tmp_path, n, step, False).seen) for n in (10, 200)]
    assert few.foreach == many.foreach
    assert 1 <= len(many.foreach) <= 8
    views = [sum(o.seen.count(v) for v in ("detach", "expand", "slice", "view")) for o in (few, many)]
    assert len(few.seen) - plain[0] - views[0] == len(many.seen) - plain[1] - views[1]


def test_an_unobserved_step_takes_the_gradient_norms_and_nothing_else(tmp_path):
    """One foreach call, one figure that says whether all is finite, and what brings the rest to the host."""
    ops = ops_of_one_step(tmp_path, 50, 33, True)
    plain = ops_of_one_step(tmp_path, 50, 33, False).seen
    ours = [o for o in ops.seen if o not in plain and o != "detach"]
    assert ops.foreach == ["_foreach_norm"]
    assert sorted(o for o in ours if o != "view") == [
        *("_foreach_norm", "_local_scalar_dense", "_to_copy", "add", "cat", "stack", "sum")
    ]


@pytest.mark.parametrize("step", [4, 33])
def test_nothing_is_read_one_by_one(tmp_path, monkeypatch, step):
    """No .item() anywhere; one figure before the update, which must not be made blindly, and one transfer after it. The
    numbers of the batch are read where a GPU is not waited for."""
    calls = []
    for name in ("item", "tolist", "cpu", "__float__", "__bool__"):
        original = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda *a, _o=original, _n=name, **k: (calls.append(_n), _o(*a, **k))[1]
        )
    with observed(tmp_path):
        model = mlp(4, 8, 3)
        optimizer = sgd(model, foreach=False)
        for _ in range(step + 1):
            calls.clear()
            optimizer.zero_grad()
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            optimizer.step()
        assert calls == ["tolist", "__float__", "cpu"]


def test_a_sketch_costs_a_copy_or_two_a_module(tmp_path):
    """Whatever the module puts out; what is made of the copies does not grow with the modules."""

    def in_forward(watched, layers):
        from contextlib import nullcontext

        with observed(tmp_path / f"{layers}") if watched else nullcontext():
            model = Many(layers)
            optimizer = sgd(model)
            data = torch.randn(64, 4), torch.zeros(64, dtype=torch.long)
            train(model, optimizer, 4, data)
            with Ops() as ops:
                model(data[0])
        return ops.seen

    counts = [in_forward(True, n).count("copy_") - in_forward(False, n).count("copy_") for n in (10, 50)]
    assert counts == [10, 50]


def test_an_encoder_without_gradients_ran_in_training(tmp_path):
    """Its modules are not called unused, and a pass without gradients puts nothing into the activations."""
    with observed(tmp_path) as seen:
        encoder, head = mlp(4, 8, 8), nn.Linear(8, 3)
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
        x, y = batch()
        for _ in range(4):
            with torch.no_grad():
                features = encoder(x)
            optimizer.zero_grad()
            F.cross_entropy(head(features), y).backward()
            optimizer.step()
    orders = {m.kind: m.order is not None for m in seen.trace.modules}
    assert orders == {"Linear": True, "ReLU": True}
    assert [s for s in seen.trace.sampled.columns if s.startswith("activation/std") and "2" in s] == []
