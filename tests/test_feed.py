"""What the model was fed: batches, loaders, evaluations. Checked against counts made by hand."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from whyloss.journal import read_run
from whyloss.observe.attach import attach

X = torch.randn(120, 6, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()


class Net(nn.Module):
    def __init__(self, drop: bool = False):
        super().__init__()
        self.body, self.norm, self.head, self.drop = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 2), drop

    def forward(self, x):
        h = F.relu(self.norm(self.body(x)))
        return self.head(F.dropout(h, 0.5) if self.drop else F.dropout(h, 0.5, self.training))


def loader(low, high, **options):
    return DataLoader(TensorDataset(X[low:high], Y[low:high]), batch_size=20, **options)


def observe(tmp_path, training):
    """Runs `training()` under observation; the Run, and the functions of torch as they were before."""
    before = {k: vars(F)[k] for k in ("cross_entropy", "mse_loss")}
    observation = attach(tmp_path / "run")
    try:
        training()
    finally:
        observation.close()
    assert {k: vars(F)[k] for k in before} == before
    return read_run(tmp_path / "run")


def fit(model, batches, epochs=2, after=lambda model: None, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(epochs):
        model.train()
        for x, y in batches() if callable(batches) else batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        after(model)


def test_training_batches_are_counted_by_the_bits_of_their_examples(tmp_path):
    run = observe(tmp_path, lambda: fit(Net(), loader(0, 80, shuffle=True), epochs=3))
    fed = run.fed
    assert (fed.passes, fed.examples, fed.distinct, fed.size, fed.repeated) == (12, 240, 80, 20, 0)
    assert (fed.of_loader, fed.loader.rounds, fed.loader.batches, fed.loader.examples) == (12, 3, 12, 80)
    assert fed.loader.sampler == "RandomSampler"
    assert not fed.loader.replacement
    assert fed.loader.place.source == "for x, y in batches() if callable(batches) else batches:"


def test_a_batch_that_comes_twice_in_a_round_is_repeated(tmp_path):
    twice = TensorDataset(torch.cat([X[:40], X[:40]]), torch.cat([Y[:40], Y[:40]]))
    run = observe(tmp_path, lambda: fit(Net(), DataLoader(twice, batch_size=20), epochs=2))
    assert (run.fed.passes, run.fed.distinct, run.fed.repeated) == (8, 40, 4)


def test_an_iterator_made_anew_each_step_is_a_round_each(tmp_path):
    batches = loader(0, 80)
    run = observe(tmp_path, lambda: fit(Net(), lambda: (next(iter(batches)) for _ in range(6)), epochs=1))
    assert (run.fed.distinct, run.fed.loader.rounds, run.fed.loader.batches, run.fed.repeated) == (20, 6, 6, 0)


def test_evaluations_are_told_apart_by_what_they_read_and_know_what_they_share_with_training(tmp_path):
    train, valid, expected = loader(0, 80), loader(70, 120), []

    def evaluate(model, batches):
        model.eval()
        with torch.no_grad():
            return sum(F.cross_entropy(model(x), y).item() * len(x) for x, y in batches) / len(batches.dataset)

    def after(model):
        expected.append((evaluate(model, train), evaluate(model, valid)))

    run = observe(tmp_path, lambda: fit(Net(), train, after=after))
    on_train, on_valid = run.evaluations
    assert (on_train.distinct, on_train.shared, on_train.sweeps, on_train.passes) == (80, 80, 2, 8)
    assert (on_valid.distinct, on_valid.shared, on_valid.sweeps, on_valid.passes) == (50, 10, 2, 6)
    assert on_valid.training == 0
    assert on_valid.named
    assert not on_valid.claims_held_out  # its line speaks of both
    assert on_valid.functions[1:3] == ("evaluate", "after")
    for i in range(2):
        # of the very first batch, the loss function was looked up before anybody knew
        assert run.metrics[f"loss/eval[{i}]"].values == pytest.approx([e[i] for e in expected[1 - i :]], rel=1e-5)


def test_a_single_evaluation_batch_has_its_loss_seen_but_for_the_first(tmp_path):
    """`F.mse_loss(model(x), y)` looks the function up before the first pass is known to be one."""
    expected = []

    def after(model):
        model.eval()
        with torch.no_grad():
            expected.append(F.cross_entropy(model(X[80:]), Y[80:]).item())

    run = observe(tmp_path, lambda: fit(Net(), loader(0, 80), epochs=4, after=after))
    assert run.metrics["loss/eval[0]"].values == pytest.approx(expected[1:], rel=1e-5)


def test_an_evaluation_loss_may_be_computed_where_gradients_are_on_again(tmp_path):
    """What is logged of the training before the evaluation is no part of it."""
    expected = []

    def after(model):
        F.cross_entropy(model(X[:80]).detach(), Y[:80])
        with torch.no_grad():
            out = model(X[80:])
        expected.append(F.cross_entropy(out, Y[80:]).item())

    run = observe(tmp_path, lambda: fit(Net(), loader(0, 80), epochs=4, after=after))
    assert run.metrics["loss/eval[0]"].values == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("lines", [1, 2])
def test_one_function_that_is_called_for_two_sets_makes_two_evaluations(tmp_path, lines):
    def evaluate(model, low, high):
        return sum(model(X[k : k + 20]).sum().item() for k in range(low, high, 20))

    def after(model):
        with torch.no_grad():
            if lines == 1:
                return evaluate(model, 0, 80), evaluate(model, 80, 120)
            trained = evaluate(model, 0, 80)
            held_out = evaluate(model, 80, 120)
            return trained, held_out

    first, second = observe(tmp_path, lambda: fit(Net(), loader(0, 80), epochs=3, after=after)).evaluations
    assert [(e.distinct, e.shared, e.sweeps, e.passes) for e in (first, second)] == [(80, 80, 3, 12), (40, 0, 3, 6)]


@pytest.mark.parametrize(("cuts", "mixed"), [([(0, 80), (80, 120)], 0), ([(0, 60), (60, 120)], 1)])
def test_passes_with_trained_and_other_examples_are_told_from_passes_of_either(tmp_path, cuts, mixed):
    def after(model):
        with torch.no_grad():
            return [model(X[low:high]) for low, high in cuts]

    (evaluation,) = observe(tmp_path, lambda: fit(Net(), loader(0, 80), after=after)).evaluations
    assert (evaluation.mixed, evaluation.shared) == (mixed, 80)


def test_passes_in_training_mode_are_counted_with_what_was_active(tmp_path):
    def after(model):
        with torch.no_grad():
            model(X[80:])

    (evaluation,) = observe(tmp_path, lambda: fit(Net(), loader(0, 80), after=after)).evaluations
    assert (evaluation.training, evaluation.passes, evaluation.active) == (2, 2, ("norm",))
    assert evaluation.held_out


@pytest.mark.parametrize("drop", [True, False])
def test_dropout_that_stays_on_is_seen_at_its_line(tmp_path, drop):
    def after(model):
        model.eval()
        with torch.no_grad():
            model(X[80:])

    (evaluation,) = observe(tmp_path, lambda: fit(Net(drop), loader(0, 80), after=after)).evaluations
    assert evaluation.looked_for_draws == 2
    assert [(d.call, d.p, d.own_mode) for d in evaluation.draws] == ([("dropout", 0.5, False)] if drop else [])
    assert all("F.dropout(h, 0.5)" in d.place.source for d in evaluation.draws)


def test_dropout_modules_switched_on_by_hand_are_known_as_deliberate(tmp_path):
    def after(model):
        model.eval()
        model[1].train()
        with torch.no_grad():
            for _ in range(5):
                model(X[80:])

    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Linear(8, 2))
    (evaluation,) = observe(tmp_path, lambda: fit(model, loader(0, 80), after=after)).evaluations
    assert evaluation.deliberate == ("1",)
    assert evaluation.again == 8
    assert {(d.p, d.own_mode) for d in evaluation.draws} == {(0.3, True)}


def test_evaluating_changes_nothing(tmp_path):
    """Parameters, generator and what the evaluation gives are bit for bit as without."""

    def train():
        torch.manual_seed(3)
        model, seen = Net(drop=True), []

        def after(model):
            model.eval()
            with torch.no_grad():
                seen.append(F.cross_entropy(model(X[80:]), Y[80:]))

        fit(model, loader(0, 80, shuffle=True), epochs=3, after=after)
        return [*model.state_dict().values(), *seen, torch.random.get_rng_state()]

    bare, kept = train(), []
    observe(tmp_path, lambda: kept.extend(train()))
    assert all(torch.equal(a, b) for a, b in zip(bare, kept, strict=True))


def test_labels_of_each_batch_are_counted(tmp_path):
    """Sorted labels: each batch holds one class, all of them hold both."""
    order = Y[:80].argsort()
    sets = TensorDataset(X[:80][order], Y[:80][order])
    run = observe(tmp_path, lambda: fit(Net(), DataLoader(sets, batch_size=10), epochs=2))
    trace = run.traces[0]
    zeros = int((Y[:80] == 0).sum())
    within = trace.signal("target/batch_entropy").values
    assert sorted(within)[-3] == pytest.approx(0.0, abs=1e-12)  # one batch an epoch holds both
    assert trace.signal("target/share").last == pytest.approx(max(zeros, 80 - zeros) / 80, rel=0.1)
    assert [trace.signal(f"target/{s}").last for s in ("classes", "lowest", "highest")] == [2, 0, 1]


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy_with_logits"])
def test_predictions_of_the_class_of_most_labels_are_counted(tmp_path, loss):
    expected = []

    def train():
        model, target = nn.Linear(4, 3 if loss == "cross_entropy" else 1), torch.tensor([0, 1, 1, 0, 1, 1])
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        for k in range(5):
            out, y = model(X[6 * k : 6 * k + 6, :4]), target.roll(k)
            named = out.argmax(1) if loss == "cross_entropy" else (out[:, 0] > 0).long()
            expected.append(float((named == 1).double().mean()))
            value = F.cross_entropy(out, y) if loss == "cross_entropy" else getattr(F, loss)(out[:, 0], y.float())
            optimizer.zero_grad()
            value.backward()
            optimizer.step()

    run = observe(tmp_path, train)
    assert run.traces[0].signal("prediction/share").values == pytest.approx(expected)


@pytest.mark.parametrize(
    ("keep", "leaks"),
    [
        (lambda kept, loss: kept.append(loss), True),
        (lambda kept, loss: kept.__setitem__(slice(None), [sum(kept) + loss]), True),
        (lambda kept, loss: kept.append(loss.item()), False),
        (lambda kept, loss: kept.append(loss.detach()), False),
    ],
    ids=["list", "sum", "item", "detach"],
)
def test_graphs_that_outlive_their_backward_pass_are_counted(tmp_path, keep, leaks):
    model, kept = Net(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def train():
        for _ in range(130):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            (loss / 2).backward()
            optimizer.step()
            keep(kept, loss)

    last = observe(tmp_path, train).kept[-1]
    assert (last.made, last.alive, last.early) == ((128, 127, 64) if leaks else (128, 0, 0))
    assert last.nodes > 5
