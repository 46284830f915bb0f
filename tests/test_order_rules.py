"""Rules on the order of calls and on exact arithmetic, on real trainings."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from training import mlp, observed
from whyloss.core.finding import Finding
from whyloss.diagnosis.diagnose import run_rules


def said(run):
    """Name → severity of all findings."""
    return {f.name: str(f.severity) for f in run_rules(run) if isinstance(f, Finding)}


def data(n=32, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 8, generator=g)
    return x, (x[:, 0] > 0).long()


def step(model, optimizer, scaler=None, between=lambda: None, x_y=None):
    x, y = x_y or data()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(next(model.parameters()).dtype)).float(), y)
    (scaler.scale(loss) if scaler else loss).backward()
    between()
    if scaler:
        scaler.step(optimizer)
        scaler.update()
    else:
        optimizer.step()


@pytest.mark.parametrize("unscale", [False, True])
def test_clipping_is_held_against_the_scale(tmp_path, unscale):
    with observed(tmp_path) as seen:
        torch.manual_seed(0)
        model, scaler = mlp(8, 16, 2), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def clip():
            if unscale:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)

        for _ in range(30):
            step(model, optimizer, scaler, clip)
    assert seen.values("scale") == [65536.0] * 30
    assert said(seen.run).get("clip-before-unscale") == (None if unscale else "error")


def test_a_scaler_that_skips_everything_is_named_without_any_update(tmp_path):
    with observed(tmp_path) as seen:
        model, scaler = mlp(8, 16, 2), torch.amp.GradScaler("cpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(40):
            optimizer.zero_grad()
            loss = model(data()[0]).pow(2).sum() + (model[0].weight * 0).sum().sqrt()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    assert len(seen.run.skipped_scales) == 40
    assert seen.run.skipped_scales[-1] < 1
    assert said(seen.run)["scaler-collapsed"] == "error"


@pytest.mark.parametrize(("rate", "held"), [(5e-5, True), (1e-2, False)])
def test_values_that_rounding_holds_are_counted(tmp_path, rate, held):
    with observed(tmp_path) as seen:
        torch.manual_seed(0)
        model = mlp(8, 64, 2).bfloat16()
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0)
        for k in range(60):
            step(model, optimizer, x_y=data(seed=k))
    share = seen.values("weight/held[0.weight]")[-1]
    assert (share > 0.9) if held else (share < 0.2)
    assert ("update-lost-to-precision" in said(seen.run)) == held


def test_rows_without_a_gradient_are_not_held(tmp_path):
    """Of an embedding only the rows of the batch count."""
    with observed(tmp_path) as seen:
        model = nn.Sequential(nn.Embedding(1000, 4), nn.Flatten(), nn.Linear(8, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        for _ in range(30):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.arange(64).reshape(32, 2)), data()[1]).backward()
            optimizer.step()
    assert seen.values("weight/held[0.weight]")[-1] == 0.0


def test_an_optimizer_built_in_the_loop_is_told_from_repeated_trainings(tmp_path):
    for name, reset in (("goes-on", False), ("starts-over", True)):
        with observed(tmp_path / name) as seen:
            torch.manual_seed(0)
            model = mlp(8, 16, 2)
            start = {k: v.clone() for k, v in model.state_dict().items()}
            for epoch in range(5):
                if reset:
                    model.load_state_dict(start)
                optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
                for k in range(8):
                    step(model, optimizer, x_y=data(seed=8 * epoch + k))
        assert ("optimizer-recreated" in said(seen.run)) != reset


@pytest.mark.parametrize("by_hand", [False, True])
def test_undivided_losses_are_told_from_gradients_divided_by_hand(tmp_path, by_hand):
    with observed(tmp_path) as seen:
        torch.manual_seed(0)
        model = mlp(8, 16, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(20):
            optimizer.zero_grad()
            for k in range(4):
                x, y = data(seed=k)
                F.cross_entropy(model(x), y).backward()
            if by_hand:
                for p in model.parameters():
                    p.grad /= 4
            optimizer.step()
    assert said(seen.run).get("accumulation-scale") == (None if by_hand else "info")


def test_targets_that_count_are_counted_in_each_backward_pass(tmp_path):
    with observed(tmp_path) as seen:
        model = mlp(8, 16, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(5):
            optimizer.zero_grad()
            for n in (2, 32):
                x, y = data()
                y[n:] = -100
                (F.cross_entropy(model(x), y) / 2).backward()
            optimizer.step()
    assert set(seen.values("target/fewest")) == {2.0}
    assert set(seen.values("target/most")) == {32.0}
    assert said(seen.run)["accumulation-scale"] == "warning"
