"""Rules on curves: what a name says of a series, runs of which there is only a log, and schedules of real trainings."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim.lr_scheduler import CosineAnnealingLR, ExponentialLR, MultiStepLR

from training import mlp, observed
from whyloss.core.evaluation import evaluation_losses, is_held_out, is_loss
from whyloss.core.feed import Evaluation
from whyloss.core.finding import Finding
from whyloss.core.run import Facts, Run, Table, Trace
from whyloss.core.series import Series
from whyloss.diagnosis.diagnose import run_rules
from whyloss.observe.kept import KEEPS


def said(run):
    """Name → severity of all findings."""
    return {f.name: str(f.severity) for f in run_rules(run) if isinstance(f, Finding)}


def log(loss, metrics=None, steps=None):
    """A run of which there is nothing but numbers over time."""
    values = np.asarray(loss, dtype=float)[:, None]
    steps = np.arange(len(values)) if steps is None else np.asarray(steps)
    trace = Trace(index=0, optimizer="", every=Table(steps, {"loss/train": 0}, values, values, values))
    series = {n: Series.of(v, np.linspace(0, steps[-1], len(v)).astype(int)) for n, v in (metrics or {}).items()}
    return Run(traces=(trace,), metrics=series, facts=Facts(end="finished"))


@pytest.mark.parametrize(
    "name", ["val_loss", "Valid Loss", "eval/loss", "Loss/Validation", "valLoss", "testloss", "eval_g0_loss", "dev_ppl"]
)
def test_names_of_losses_on_held_out_data(name):
    assert is_loss(name)
    assert is_held_out(name)


@pytest.mark.parametrize(
    "name", ["loss", "train_loss", "value_loss", "retrieval_loss", "latest_loss", "interval_loss", "trainval_loss"]
)
def test_names_of_other_losses(name):
    assert is_loss(name)
    assert not is_held_out(name)


@pytest.mark.parametrize("name", ["val_accuracy", "loss_scale", "eval_loss_weight", "policy_entropy", "epoch", "lr"])
def test_names_of_no_loss(name):
    assert not is_loss(name)


def test_what_was_seen_counts_where_the_data_is_held_out():
    series = Series.of([1.0, 0.5])
    evaluations = (Evaluation(index=0, distinct=10), Evaluation(index=1, distinct=10, shared=10))
    run = Run(metrics={"loss/eval[0]": series, "loss/eval[1]": series}, evaluations=evaluations)
    assert list(evaluation_losses(run)) == ["loss/eval[0]"]


@pytest.mark.parametrize(
    "line",
    [
        "total += loss",
        "total = total + loss",
        "epoch_loss += loss * x.size(0)  # weighted",
        "self.sums[i] += train_loss / n",
        "losses.append(loss)",
    ],
)
def test_lines_that_keep_a_loss(line):
    assert KEEPS.search(line)


@pytest.mark.parametrize(
    "line",
    ["total += loss.item()", "total += float(loss)", "losses.append(loss.detach())", "loss = loss + penalty", "n += 1"],
)
def test_lines_that_keep_a_value(line):
    assert not KEEPS.search(line)


def test_a_log_of_twenty_rows_is_judged():
    """Few points, an evaluation at each."""
    fall = np.geomspace(2.0, 0.1, 20)
    turn = np.r_[np.geomspace(2.0, 0.9, 8), np.linspace(0.9, 2.5, 12)]
    assert said(log(fall, {"val_loss": turn}))["overfitting"] == "warning"
    assert "overfitting" not in said(log(fall, {"val_loss": fall + 0.3}))
    assert "overfitting" not in said(log(fall, {"value_loss": turn}))


def test_a_log_of_a_hundred_thousand_rows_is_judged():
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, 100_000)
    level = (0.5 + 4 * np.exp(-20 * t)) * (1 + 0.1 * rng.normal(size=len(t)))
    assert said(log(level)) == {"converged": "info"}


def test_a_log_of_negative_losses_is_judged():
    rng = np.random.default_rng(1)
    t = np.linspace(0, 1, 400)
    assert said(log(-5 + 4 * np.exp(-8 * t) + 0.02 * rng.normal(size=400))).get("converged") == "info"
    assert set(said(log(-1 - 4 * t + 0.02 * rng.normal(size=400)))) == {"not-converged"}


def trained(folder, schedule, per_update=1):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(128, 8, generator=g)
    y = (x @ torch.randn(8, 4, generator=g)).argmax(1)
    model = mlp(8, 16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    scheduler = schedule(optimizer)
    with observed(folder) as seen:
        for step in range(240):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            if step % per_update == 0:
                scheduler.step()
    return seen.run


@pytest.mark.parametrize(
    ("schedule", "each", "severity"),
    [
        (lambda o: ExponentialLR(o, 0.8), 1, "warning"),
        (lambda o: ExponentialLR(o, 0.8), 12, None),
        (lambda o: CosineAnnealingLR(o, 240), 1, None),
        (lambda o: MultiStepLR(o, [80, 130, 180]), 1, None),
    ],
    ids=["decay at each update", "decay at each epoch", "cosine", "tenths"],
)
def test_schedules(tmp_path, schedule, each, severity):
    assert said(trained(tmp_path, schedule, each)).get("lr-schedule-collapsed") == severity
