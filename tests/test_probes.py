"""Experiments on recorded steps: what each sees, on steps where it is known; and that they leave no trace."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from training import observed
from whyloss.core.probe import made
from whyloss.observe import TapeOptions, probing
from whyloss.tape.labels import with_labels
from whyloss.tape.probes import PROBES, make
from whyloss.tape.probes.bench import Bench
from whyloss.tape.recording import recording
from whyloss.tape.replay import replay
from whyloss.tape.tape import Role

GENERATOR = torch.Generator().manual_seed(0)


def tape_of(model, *given, target, loss=F.cross_entropy):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with recording(model, optimizer) as step:
        loss(model(*given), target).backward()
        optimizer.step()
    tape = step.tape()
    assert tape.faithful, tape.reason
    return tape


def probed(name, model, *given, seconds=30.0, **options):
    found = list(make(Bench(tape_of(model, *given, **options), 0.0, seconds, given=len(given)), [name]))
    assert len(found) == 1, found
    return found[0]


def randn(*shape):
    return torch.randn(*shape, generator=GENERATOR)


def classes(n, *shape):
    return torch.randint(0, n, shape, generator=GENERATOR)


class Call(nn.Module):
    """A model out of layers and a function of them and the input."""

    def __init__(self, function, **layers):
        super().__init__()
        self.function = function
        for name, layer in layers.items():
            self.add_module(name, layer)

    def forward(self, *given):
        return self.function(self, *given)


def linear(*sizes):
    return nn.Linear(*sizes)


# -- input-independence


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (lambda m, x: m.a(x), "used"),
        (lambda m, x: m.a(x * 0), "ignored"),
        (lambda m, x: m.a(torch.zeros(len(x), 4)), "ignored"),
        (lambda m, x: m.a(x) * 1e-6, "used"),
    ],
)
def test_inputs_that_are_ignored_are_told_from_those_that_count_for_little(function, outcome):
    assert (
        probed("input-independence", Call(function, a=linear(4, 3)), randn(8, 4), target=classes(3, 8)).outcome
        == outcome
    )


@pytest.mark.parametrize(
    ("function", "outcome", "subject"),
    [
        (lambda m, x, lengths: m.a(x * 0) + lengths[:, None], "partly", "x"),
        (lambda m, x, lengths: m.a(x) + lengths[:, None], "used", "x, lengths"),
        (lambda m, x, lengths: m.a(x) + 0 * lengths[:, None], "used", "x, lengths"),
    ],
)
def test_one_of_several_inputs_that_is_ignored(function, outcome, subject):
    """Whole numbers may be of no consequence in one batch."""
    model = Call(function, a=linear(4, 3))
    model.forward = lambda x, lengths: function(model, x, lengths)
    probe = probed("input-independence", model, randn(8, 4), classes(9, 8), target=classes(3, 8))
    assert (probe.outcome, probe.subject) == (outcome, subject)


def test_values_that_leave_torch_and_come_back_are_not_called_ignored():
    model = Call(lambda m, x: m.a(torch.tensor((x * 2).tolist())), a=linear(4, 3))
    probe = probed("input-independence", model, randn(8, 4), target=classes(3, 8))
    assert (probe.outcome, probe.reason) == ("", "values leave torch in the step, and may come back")


def test_predictions_that_are_not_finite_say_nothing_of_the_input():
    probe = probed(
        "input-independence",
        Call(lambda m, x: m.a(x) / 0, a=linear(4, 3)),
        randn(8, 4),
        target=randn(8, 3),
        loss=F.mse_loss,
    )
    assert (probe.outcome, probe.reason) == ("", "the predictions are not finite")


def test_data_that_come_by_another_way_are_not_called_ignored():
    hidden = randn(8, 4)
    probe = probed(
        "input-independence", Call(lambda m, x: m.a(hidden), a=linear(4, 3)), randn(8, 4), target=classes(3, 8)
    )
    assert (probe.outcome, probe.reason) == (
        "",
        "data reach the loss that are neither arguments of the model nor targets",
    )


# -- labels that the step picks itself


def picked(index, convert=lambda y: y):
    return lambda out, y: F.cross_entropy(out, convert(y[index]))


@pytest.mark.parametrize(
    "target", [classes(3, 500), randn(500, 3).softmax(1), classes(3, 500).float()], ids=["classes", "shares", "real"]
)
@pytest.mark.parametrize("index", [torch.arange(40, 56), slice(40, 56)], ids=["list", "slice"])
def test_labels_that_are_picked_in_the_step_are_its_labels(target, index):
    loss = picked(index, lambda y: y.long() if y.ndim == 1 and y.is_floating_point() else y)
    model = Call(last, r=nn.GRU(8, 5), b=linear(5, 3))
    given = {"target": target, "loss": loss}
    assert probed("batch-independence", model, randn(16, 12, 8), **given).outcome == "leak"
    assert probed("input-independence", model, randn(16, 12, 8), **given).outcome == "used"


def test_the_labels_of_a_step_that_picks_them_are_leaves_and_the_rest_is_as_it_was():
    y, index = classes(3, 500), torch.arange(40, 56)
    tape = tape_of(linear(8, 3), randn(16, 8), target=y, loss=picked(index))
    ours = with_labels(tape)
    assert [leaf.value.tolist() for leaf in ours.of(Role.TARGET)] == [y[index].tolist()]
    assert [op.name for op in ours.ops] == [op.name for op in tape.ops if "getitem" not in op.name]
    assert torch.equal(replay(ours).losses[0], replay(tape).losses[0])


def test_a_step_that_picks_nothing_keeps_its_tape():
    tape = tape_of(linear(8, 3), randn(16, 8), target=classes(3, 16))
    assert with_labels(tape) is tape


def test_a_target_made_of_the_input_stays_a_part_of_it():
    """Its elements move with the input's."""
    tape = tape_of(
        Call(lambda m, x: m.a(x), a=linear(8, 8)),
        x := randn(16, 8),
        target=x,
        loss=lambda out, y: F.mse_loss(out, y.roll(1, 1)),
    )
    assert with_labels(tape) is tape


# -- batch-independence


def last(m, x):
    return m.b(m.r(x)[0][:, -1])


@pytest.mark.parametrize(
    ("model", "outcome", "subject"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(12), nn.Flatten(), nn.Linear(96, 3)), "independent", ""),
        (Call(last, r=nn.GRU(8, 5, batch_first=True), b=linear(5, 3)), "independent", ""),
        (Call(last, r=nn.GRU(8, 5), b=linear(5, 3)), "leak", "gru"),
        (Call(lambda m, x: m.b(m.r(x.transpose(0, 1))[0][-1]), r=nn.GRU(8, 5), b=linear(5, 3)), "independent", ""),
        (Call(lambda m, x: m.b(m.r(x.view(12, -1, 8))[0][-1]), r=nn.GRU(8, 5), b=linear(5, 3)), "leak", "view"),
        (Call(lambda m, x: m.b(x[:, 0]).softmax(0), b=linear(8, 3)), "leak", "softmax"),
        (Call(lambda m, x: m.b(x[:, 0] - x[:, 0].mean(0)), b=linear(8, 3)), "statistics", ""),
        (
            Call(lambda m, x: m.b((h := m.b(x[:, 0]).tanh()) + h[torch.randperm(len(x))]), b=linear(8, 8)),
            "indexed",
            None,
        ),
    ],
)
def test_examples_that_meet(model, outcome, subject):
    probe = probed("batch-independence", model, randn(16, 12, 8), target=classes(3, 16))
    assert probe.outcome == outcome, probe
    assert subject is None or probe.subject == subject


def test_one_label_an_example_is_no_sequence_of_labels():
    """It may be picked from what the model was given."""
    model = Call(lambda m, x: m.b(m.r(m.e(x))[0][:, -1]), e=nn.Embedding(9, 8), r=nn.GRU(8, 5), b=linear(5, 9))
    x = classes(9, 16, 12)
    first = probed("batch-independence", model, x, target=x, loss=lambda out, y: F.cross_entropy(out, y[:, 0]))
    assert (first.outcome, first.number("sequences")) == ("leak", 0)


def test_the_call_in_which_examples_meet_is_found_where_features_are_as_many():
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0)
    model = Call(lambda m, x: m.b(m.r(x)[:, -1]), r=layer, b=linear(16, 3))
    probe = probed("batch-independence", model, randn(16, 12, 16), target=classes(3, 16))
    assert (probe.outcome, probe.subject, probe.number("along")) == ("leak", "multi_head_attention_forward", 1)


def test_examples_that_meet_only_at_the_end_of_what_a_recurrent_layer_reads():
    """What the middle ones do is forgotten by then."""
    model = Call(lambda m, x: m.b(m.r(x.view(400, -1, 8))[0][-1]), r=nn.RNN(8, 5), b=linear(5, 3))
    assert probed("batch-independence", model, randn(16, 400, 8), target=classes(3, 16)).outcome == "leak"


def test_examples_that_are_meant_to_meet_are_not_judged():
    model = Call(lambda m, x, a: m.b(a @ m.b(x).tanh()), b=linear(3, 3))
    near = (torch.rand(16, 16, generator=GENERATOR) < 0.2).float() + torch.eye(16)
    assert (
        "examples by examples" in probed("batch-independence", model, randn(16, 3), near, target=classes(3, 16)).reason
    )


# -- causality and target-offset


def tokens(m, x):
    return m.b(m.r(m.e(x))[0]).transpose(1, 2)


def sequence_model(**options):
    return Call(
        tokens, e=nn.Embedding(9, 8), r=nn.GRU(8, 6, batch_first=True, **options), b=linear(6 * (1 + bool(options)), 9)
    )


@pytest.mark.parametrize("offset", [0, 1, 2])
def test_how_far_targets_are_shifted(offset):
    data = classes(9, 6, 22)
    probe = probed("target-offset", sequence_model(), data[:, :20], target=data[:, offset : 20 + offset])
    assert (probe.outcome, probe.number("offset")) == ("shifted", offset)


@pytest.mark.parametrize(("options", "outcome"), [({}, "causal"), ({"bidirectional": True}, "leak")])
def test_whether_a_model_sees_what_comes_after(options, outcome):
    data = classes(9, 6, 21)
    assert probed("causality", sequence_model(**options), data[:, :-1], target=data[:, 1:]).outcome == outcome


def test_masked_targets_are_no_shift():
    data = classes(8, 6, 20)
    hidden = torch.rand(data.shape, generator=GENERATOR) < 0.3
    model, target = sequence_model(bidirectional=True), data.masked_fill(~hidden, -100)
    assert probed("target-offset", model, data.masked_fill(hidden, 8), target=target).outcome == "unrelated"


# -- derivative


def function(forward, backward):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx, grad):
            return backward(ctx.saved_tensors[0], grad)

    return Custom.apply


@pytest.mark.parametrize(
    ("forward", "backward", "outcome"),
    [
        (torch.tanh, lambda x, g: g * (1 - x.tanh() ** 2), "agrees"),
        (torch.tanh, lambda x, g: g * (1 - x.tanh()), "differs"),
        (torch.tanh, lambda x, g: -g * (1 - x.tanh() ** 2), "differs"),
        (torch.round, lambda x, g: g, "flat"),
        (lambda x: x.clamp(-0.1, 0.1), lambda x, g: g, "flat"),
        (lambda x: x.view_as(x), lambda x, g: -g, "identity"),
        (torch.relu, lambda x, g: g * (x > 0), "agrees"),
    ],
)
def test_hand_written_backwards(forward, backward, outcome):
    apply = function(forward, backward)
    model = Call(lambda m, x: m.b(apply(m.a(x))), a=linear(4, 8), b=linear(8, 3))
    assert probed("derivative", model, randn(8, 4), target=classes(3, 8)).outcome == outcome


# -- overfit-batch


def test_a_batch_that_can_be_learned_by_heart_and_one_that_can_not():
    x, y = randn(16, 8), classes(3, 16)
    wide = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    assert probed("overfit-batch", wide, x, target=y).outcome == "memorised"
    blind = Call(lambda m, x: m.a(x * 0), a=linear(8, 3))
    assert probed("overfit-batch", blind, x, target=y).outcome == "not-memorised"


# -- what they leave behind, and what they cost


def test_nothing_of_the_step_is_changed():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    tape = tape_of(model, randn(8, 4), target=classes(3, 8))
    before = (
        copy.deepcopy(model.state_dict()),
        torch.get_rng_state(),
        [leaf.value.clone() for leaf in tape.leaves.values()],
    )
    bench = Bench(tape, 0.0, 30.0)
    assert {p.name for p in make(bench, PROBES)} == set(PROBES)
    assert all(torch.equal(a, b) for a, b in zip(before[0].values(), model.state_dict().values(), strict=True))
    assert torch.equal(before[1], torch.get_rng_state())
    assert all(torch.equal(a, leaf.value) for a, leaf in zip(before[2], tape.leaves.values(), strict=True))
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
    assert model.training


def test_without_time_nothing_is_made_and_the_reason_is_said():
    found = list(make(Bench(tape_of(nn.Linear(4, 3), randn(8, 4), target=classes(3, 8)), 1.0, 0.1), PROBES))
    assert not any(p.outcome for p in found)
    assert any("0.1 s are left" in p.reason for p in found)


def loop(steps=34):
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(steps):
        x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [*model.state_dict().values(), torch.get_rng_state()]


def test_a_training_with_experiments_is_the_same_to_the_last_bit(tmp_path, monkeypatch):
    monkeypatch.setattr(probing, "ENOUGH", 10)  # so that the one at the end is made, too
    alone = loop()
    with observed(tmp_path) as seen:
        watched = loop()
    assert all(torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
    assert [p.step for p in made(seen.run.probes, 0, "input-independence")] == [2, 30]
    assert made(seen.run.probes, 0, "batch-independence")[0].outcome == "independent"
    assert made(seen.run.probes, 0, "overfit-batch")


def test_without_memory_for_tapes_there_are_no_experiments(tmp_path):
    with observed(tmp_path, tapes=TapeOptions(most_bytes=0)) as seen:
        loop()
    assert not seen.run.probes


def test_a_loss_by_hand_says_what_it_compares():
    x = randn(6, 20)
    model = Call(lambda m, x: m.c(x[:, None])[:, 0], c=nn.Conv1d(1, 1, 3, padding=1))
    for loss in (lambda p, y: ((p - y[:, 1:]) ** 2).mean(), lambda p, y: (y[:, 1:] - p).abs().sum()):
        given = {"target": x, "loss": loss}
        assert probed("causality", model, x[:, :-1].clone(), **given).outcome == "leak"
        assert probed("batch-independence", model, x[:, :-1].clone(), **given).outcome == "independent"


@pytest.mark.parametrize(
    ("formula", "outcome", "subject"),
    [
        (lambda p, y: (p.logsumexp(1) - p.gather(1, y[:, None])[:, 0]).mean(), "agrees", "cross-entropy"),
        (lambda p, y: -p.log_softmax(1)[torch.arange(len(y)), y].sum(), "agrees", "cross-entropy"),
        (lambda p, y: p.logsumexp(0).mean() - p.gather(1, y[:, None]).mean(), "slip", "log-sum-exp over the examples"),
        (lambda p, y: -p.log_softmax(0).gather(1, y[:, None]).mean(), "slip", "softmax over the examples"),
        (lambda p, y: -p.softmax(1).gather(1, y[:, None]).mean(), "slip", "without its logarithm"),
        (lambda p, y: p.log_softmax(1).gather(1, y[:, None]).mean(), "negated", "cross-entropy"),
        (lambda p, y: (1 + p - p.gather(1, y[:, None])).relu().mean(), "", ""),
    ],
)
def test_a_cross_entropy_by_hand(formula, outcome, subject):
    probe = probed("independent-loss", linear(4, 3), randn(16, 4), target=classes(3, 16), loss=formula)
    assert probe.outcome == outcome
    assert subject in probe.subject


def test_a_cross_entropy_by_hand_says_what_it_compares():
    def loss(p, y):
        return (p.logsumexp(1) - p.gather(1, y[:, None])[:, 0]).mean()

    assert probed("input-independence", linear(4, 3), randn(8, 4), target=classes(3, 8), loss=loss).outcome == "used"


# -- padding-invariance


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (lambda m, x: m.b(m.r(m.e(x))[0][:, -1]), "leak"),
        (lambda m, x: m.b(m.r(m.e(x))[0][torch.arange(len(x)), (x > 0).sum(1) - 1]), "independent"),
        (lambda m, x: m.b(m.e(x)[..., :5].mean(1)), "leak"),
        (lambda m, x: m.b((m.e(x)[..., :5] * (x > 0)[..., None]).sum(1)), "independent"),
    ],
)
def test_padding_that_counts_and_padding_that_does_not(function, outcome):
    lengths = torch.arange(2, 10)[:, None]
    ids = torch.randint(1, 20, (8, 12), generator=GENERATOR).masked_fill(torch.arange(12)[None] >= lengths, 0)
    model = Call(function, e=nn.Embedding(20, 6), r=nn.GRU(6, 5, batch_first=True), b=linear(5, 3))
    assert probed("padding-invariance", model, ids, target=classes(3, 8)).outcome == outcome


@pytest.mark.parametrize(
    ("function", "outcome"),
    [
        (lambda m, x: m.b(m.r(m.e(x))[0][:, -1]), "nothing-else"),
        (lambda m, x: m.b((h := m.r(m.e(x))[0])[:, -1] + h[:, 0]), "forgotten"),
        (lambda m, x: m.b(m.r(m.e(x))[0][torch.arange(len(x)), (x > 0).sum(1) - 1]), "independent"),
        (lambda m, x: m.b(m.e(x)[:, 0, :5]), "independent"),  # the first element is all that is read
    ],
)
def test_a_sequence_that_is_forgotten_over_its_padding(function, outcome):
    lengths = torch.arange(2, 10)[:, None]
    ids = torch.randint(1, 20, (8, 60), generator=GENERATOR).masked_fill(torch.arange(60)[None] >= lengths, 0)
    model = Call(function, e=nn.Embedding(20, 6), r=nn.RNN(6, 5, batch_first=True), b=linear(5, 3))
    assert probed("padding-invariance", model, ids, target=classes(3, 8)).outcome == outcome


@pytest.mark.parametrize(("shown", "outcome"), [(lambda x: x == 0, "nothing-else"), (lambda x: x != 0, "independent")])
def test_a_mask_the_wrong_way_round(shown, outcome):
    x = randn(8, 12) * (torch.arange(12) < torch.arange(2, 10)[:, None])

    def mean(m, x):
        there = shown(x)[..., None]
        return m.b((m.e(x[..., None]) * there).sum(1) / there.sum(1))

    model = Call(mean, e=linear(1, 5), b=linear(5, 3))
    assert probed("padding-invariance", model, x, target=classes(3, 8)).outcome == outcome


# -- independent-loss


def written(formula):
    return lambda prediction, target: formula(prediction.squeeze(1), target.float())


@pytest.mark.parametrize(
    ("formula", "outcome", "subject"),
    [
        (lambda p, y: (p - y).pow(2).mean(), "agrees", "squared error"),
        (lambda p, y: 0.5 * ((p - y) ** 2).sum(), "agrees", "squared error"),
        (lambda p, y: (p - y).mean(), "slip", "the difference without a square"),
        (lambda p, y: (p - y).mean() ** 2, "slip", "the square of the mean difference"),
        (lambda p, y: -(y * p.sigmoid().log() + (1 - y) * (1 - p.sigmoid()).log()).mean(), "agrees", "binary cross"),
        (
            lambda p, y: (-y * p.sigmoid().log() + (1 - y) * (1 - p.sigmoid()).log()).mean(),
            "slip",
            "the mean of y log p",
        ),
        (lambda p, y: (1 - y * p).relu().mean(), "", ""),
        (lambda p, y: (2 * y * (p - y).square() + (p - y).square()).mean(), "", ""),
    ],
)
def test_losses_that_are_written_by_hand(formula, outcome, subject):
    probe = probed("independent-loss", linear(4, 1), randn(16, 4), target=classes(2, 16), loss=written(formula))
    assert probe.outcome == outcome
    assert probe.subject.startswith(subject)
