"""The model behind an optimizer is found with no help from the script, and everything in it has its name."""

import runpy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from training import batch, mlp, observed, train


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.relu, self.fc2, self.head = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.relu(self.fc1(x))  # first use
        x = self.relu(self.fc2(x))
        return self.head(x)


class Encoder(nn.Sequential):
    pass


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1)


def tensor_names(trace):
    return [t.name for t in trace.tensors]


def test_a_sequential_is_found(tmp_path):
    """Its tensors are named as named_parameters() names them."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        train(model, sgd(model.parameters()))
    assert seen.trace.model == "Sequential"
    assert tensor_names(seen.trace) == [n for n, _ in model.named_parameters()]
    assert all(t.in_optimizer and t.in_model and t.in_graph for t in seen.trace.tensors)


def test_a_module_of_the_users_is_found_whole(tmp_path):
    """Though the optimizer was given only a part of it: the rest is there, outside the optimizer."""
    with observed(tmp_path) as seen:
        model = Net()
        train(model, sgd(model.head.parameters()))
    assert seen.trace.model == "Net"
    assert [t.name for t in seen.trace.tensors if t.in_optimizer] == ["head.weight", "head.bias"]
    assert [t.name for t in seen.trace.tensors if not t.in_optimizer] == [
        f"{m}.{p}" for m in ("fc1", "fc2") for p in ("weight", "bias")
    ]
    assert all(t.in_graph for t in seen.trace.tensors)


def test_modules_have_their_order_their_slots_and_the_line_that_calls_them(tmp_path):
    """A module that is used twice has a slot for each call."""
    with observed(tmp_path) as seen:
        model = Net()
        train(model, sgd(model.parameters()))
    ran = sorted((m for m in seen.trace.modules if m.order is not None), key=lambda m: m.order)
    assert [(m.path, m.kind, m.slots) for m in ran] == [
        ("fc1", "Linear", ("fc1",)),
        ("relu", "ReLU", ("relu", "relu:1")),
        ("fc2", "Linear", ("fc2",)),
        ("head", "Linear", ("head",)),
    ]
    assert (ran[0].place.file, ran[0].place.line) == (__file__, Net.forward.__code__.co_firstlineno + 1)
    assert ran[0].place.source == "x = self.relu(self.fc1(x))  # first use"


def test_two_modules_are_named_by_their_variables(tmp_path):
    """As far as the function that builds the optimizer tells them apart."""
    with observed(tmp_path) as seen:
        encoder = Encoder(nn.Linear(4, 8), nn.ReLU())
        head = nn.Linear(8, 3)
        optimizer = sgd([*encoder.parameters(), *head.parameters()])
        x, y = batch()
        F.cross_entropy(head(encoder(x)), y).backward()
        optimizer.step()
    assert tensor_names(seen.trace) == ["encoder.0.weight", "encoder.0.bias", "head.weight", "head.bias"]
    assert {m.path: m.order for m in seen.trace.modules} == {"encoder.0": 0, "encoder.1": 1, "head": 2}


def test_two_modules_of_a_script_are_named_by_its_globals(tmp_path):
    """Of the same class, too."""
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "left, right = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)\n"
        "optimizer = torch.optim.SGD([*left.parameters(), *right.parameters()], lr=0.1)\n"
        "(left(torch.ones(2, 4)) + right(torch.ones(2, 4))).sum().backward()\n"
        "optimizer.step()\n"
    )
    with observed(tmp_path) as seen:
        kept = runpy.run_path(str(script))
    assert set(tensor_names(seen.trace)) == {f"{m}.{p}" for m in ("left", "right") for p in ("weight", "bias")}
    assert (seen.trace.place.file, seen.trace.place.line) == (str(script), 3)
    assert (seen.trace.step_place.line, kept["optimizer"] is not None) == (5, True)


def test_the_local_variables_of_the_script_are_not_touched(tmp_path):
    """locals() is a dict of the user's; reading a frame's variables would fill it with later ones."""
    with observed(tmp_path):
        learning_rate = 0.1
        settings = locals()
        known = set(settings)
        encoder, head = Encoder(nn.Linear(4, 8)), nn.Linear(8, 3)
        optimizer = torch.optim.SGD([*encoder.parameters(), *head.parameters()], lr=learning_rate)
        F.cross_entropy(head(encoder(batch()[0])), batch()[1]).backward()
        optimizer.step()
        assert set(settings) == known


def test_layers_in_a_python_list_are_found_with_their_place(tmp_path):
    """parameters() does not see them; the loss does, and their gradients are observed."""

    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Linear(4, 8), nn.Linear(8, 8)]
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.head(x)

    with observed(tmp_path) as seen:
        model = Hidden()
        train(model, sgd(model.parameters()))
    assert {t.name: (t.in_model, t.in_optimizer, t.in_graph) for t in seen.trace.tensors} == {
        "head.weight": (True, True, True),
        "head.bias": (True, True, True),
        **{f"layers[{i}].{p}": (False, False, True) for i in (0, 1) for p in ("weight", "bias")},
    }
    assert all(g > 0 for g in seen.values("grad/norm[layers[0].weight]"))
    assert seen.trace.model == "Hidden"


def test_a_bare_tensor_of_the_optimizer_has_a_name(tmp_path):
    """No module owns it."""
    with observed(tmp_path) as seen:
        w = torch.zeros(4, 3, requires_grad=True)
        optimizer = sgd([w])
        train(lambda x: x @ w, optimizer)
    assert [(t.name, t.in_model, t.module, t.shape) for t in seen.trace.tensors] == [("tensor0", False, "", (4, 3))]
    assert all(g > 0 for g in seen.values("grad/norm[tensor0]"))


def test_inputs_that_want_a_gradient_are_no_parameters(tmp_path):
    """Saliency and adversarial training ask for the gradient of each batch."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model.parameters())
        for step in range(4):
            x, y = batch(seed=step)
            optimizer.zero_grad()
            F.cross_entropy(model(x.requires_grad_()), y).backward()
            optimizer.step()
    assert tensor_names(seen.trace) == [n for n, _ in model.named_parameters()]


def test_tied_weights_are_one_tensor_with_two_names(tmp_path):
    """The first name is its name; the others are kept beside it."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(5, 4), nn.Linear(4, 5, bias=False)
            self.head.weight = self.embed.weight

        def forward(self, x):
            return self.head(self.embed(x))

    with observed(tmp_path) as seen:
        model = Tied()
        train(model, sgd(model.parameters()), data=(torch.arange(5), torch.arange(5)))
    assert [(t.name, t.aliases, t.module) for t in seen.trace.tensors] == [("embed.weight", ("head.weight",), "embed")]


def test_lazy_modules_are_described_as_what_they_become(tmp_path):
    """Shape, kind and first values are known only after the first forward pass."""
    with observed(tmp_path) as seen:
        model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyLinear(3))
        optimizer = sgd(model.parameters())
        train(model, optimizer)
    assert [(t.name, t.shape, t.kind) for t in seen.trace.tensors][:2] == [
        ("0.weight", (8, 4), "Linear"),
        ("0.bias", (8,), "Linear"),
    ]
    assert [m.kind for m in seen.trace.modules] == ["Linear", "ReLU", "Linear"]
    assert seen.trace.tensors[0].std > 0
    assert len(seen.values("rows/spread[0.weight]")) == 3


def test_groups_that_are_added_later_are_followed(tmp_path):
    """Unfreezing the trunk with a second group: its tensors move into the optimizer, and the walk is made again."""
    with observed(tmp_path) as seen:
        model = Net()
        optimizer = sgd(model.head.parameters())
        train(model, optimizer, 5)
        optimizer.add_param_group({"params": list(model.fc2.parameters()), "lr": 0.01})
        train(model, optimizer, 2)
    assert {t.name: t.group for t in seen.trace.tensors if t.in_optimizer} == {
        "fc2.weight": 1,
        "fc2.bias": 1,
        "head.weight": 0,
        "head.bias": 0,
    }
    assert seen.values("lr[1]") == [0.01, 0.01]
    assert seen.trace.signal("update/norm[fc2.weight]").steps.tolist() == [5, 6]
    assert seen.trace.groups == 2


def test_requires_grad_is_followed(tmp_path):
    """A layer that is frozen after some updates is described as frozen."""
    with observed(tmp_path) as seen:
        model = Net()
        optimizer = sgd(model.parameters())
        train(model, optimizer, 5)
        model.fc1.requires_grad_(False)
        train(model, optimizer, 2)
    assert [t.name for t in seen.trace.tensors if not t.trainable] == ["fc1.weight", "fc1.bias"]


def test_a_graph_that_is_too_large_leaves_unknown_what_it_reaches(tmp_path, monkeypatch):
    """in_graph is None where the walk was not finished, never False."""
    monkeypatch.setattr("whyloss.observe.graph.MOST_NODES", 2)
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        train(model, sgd(model.parameters()))
    assert {t.in_graph for t in seen.trace.tensors} <= {True, None}
    assert None in {t.in_graph for t in seen.trace.tensors}


def test_what_the_loss_does_not_reach_is_known(tmp_path):
    """A detached part of the model."""

    class Cut(Net):
        def forward(self, x):
            return self.head(torch.relu(self.fc2(torch.relu(self.fc1(x)).detach())))

    with observed(tmp_path) as seen:
        model = Cut()
        train(model, sgd(model.parameters()))
    assert [t.name for t in seen.trace.tensors if t.in_graph is False] == ["fc1.weight", "fc1.bias"]
    assert seen.trace.every.absent("grad/norm[fc1.weight]").tolist() == [0, 1, 2]
    assert seen.trace.module("fc1").order == 0


@pytest.mark.filterwarnings("ignore")
def test_a_compiled_model_is_named_as_the_users_own(tmp_path):
    """torch.compile's wrapper is looked through; its hooks cost no graph break and no compilation."""
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    with observed(tmp_path) as seen:
        model = Net()
        compiled = torch.compile(model, backend=backend)
        optimizer = sgd(compiled.parameters())
        losses = train(compiled, optimizer, 25)
    assert tensor_names(seen.trace) == [n for n, _ in model.named_parameters()]
    assert seen.values("loss/train") == pytest.approx(losses)
    assert len(graphs) == 1


def test_a_larger_module_that_appears_later_takes_over(tmp_path):
    """The optimizer was built of a backbone, before the module that holds it."""

    class Whole(nn.Module):
        def __init__(self, backbone):
            super().__init__()
            self.backbone, self.top = backbone, nn.Linear(8, 3)

        def forward(self, x):
            return self.top(self.backbone(x))

    with observed(tmp_path) as seen:
        backbone = mlp(4, 8, 8)
        optimizer = sgd(backbone.parameters())
        model = Whole(backbone)
        train(model, optimizer, 4)
    assert [(t.name, t.in_optimizer) for t in seen.trace.tensors] == [
        (f"backbone.{n}", True) for n, _ in backbone.named_parameters()
    ] + [("top.weight", False), ("top.bias", False)]


def test_a_model_given_by_hand_is_the_root(tmp_path):
    """watch(model) names it even where the optimizer holds nothing of it."""
    with observed(tmp_path, models=(model := mlp(4, 8, 3),)) as seen:
        stale = [p.detach().clone().requires_grad_() for p in model.parameters()]
        optimizer = sgd(stale)
        x, y = batch()
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert [(t.name, t.in_optimizer) for t in seen.trace.tensors] == [
        *((n, False) for n, _ in model.named_parameters()),
        *((f"tensor{i}", True) for i in range(4)),
    ]


def test_members_of_a_module_list_know_each_other(tmp_path):
    """Experts that did not run are told from unused layers by their siblings."""

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(3))

        def forward(self, x):
            return self.experts[1](x)

    with observed(tmp_path) as seen:
        model = Experts()
        train(model, sgd(model.parameters()))
    assert {m.path: (m.order, m.siblings) for m in seen.trace.modules} == {
        "experts.0": (None, ("experts.1", "experts.2")),
        "experts.1": (0, ("experts.0", "experts.2")),
        "experts.2": (None, ("experts.0", "experts.1")),
    }
