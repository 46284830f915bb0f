"""What rules on the state of modules rest on, seen in small trainings."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from training import observed
from whyloss.core.finding import Finding
from whyloss.core.initialisation import scales
from whyloss.core.saturation import bounded, mean_slope
from whyloss.rules import all_rules


@pytest.fixture(autouse=True)
def _alone():
    """Models of earlier tests that are in a cycle are copies, too."""
    gc.collect()


def alarms(run):
    found = (outcome for rule in all_rules() for outcome in rule.check(run) if isinstance(outcome, Finding))
    return {f.name for f in found if f.severity.alarm}


class Net(nn.Module):
    def __init__(self, norm=True):
        super().__init__()
        self.fc1 = nn.Linear(6, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.norm(self.fc1(x))))


def train(net, updates, after=lambda i: None, scale=1.0):
    torch.manual_seed(0)
    x, y = scale * torch.randn(64, 6), torch.arange(64) % 3
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    for i in range(updates):
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
        after(i)


def averages(net, buffers):
    """A copy, and what moves it after each update and evaluates it now and then."""
    ema = copy.deepcopy(net).eval()

    @torch.no_grad()
    def follow(i):
        for mine, theirs in zip(ema.parameters(), net.parameters(), strict=True):
            mine.lerp_(theirs, 0.1)
        for mine, theirs in zip(ema.buffers(), net.buffers(), strict=True) if buffers else ():
            mine.copy_(theirs)
        if i % 10 == 9:
            ema(torch.zeros(2, 6))

    return ema, follow


@pytest.mark.parametrize("buffers", [False, True])
def test_an_average_is_seen_and_whether_its_buffers_follow(tmp_path, buffers):
    net = Net()
    with observed(tmp_path) as seen:
        ema, follow = averages(net, buffers)
        train(net, 70, follow)
    (found,) = [c for c in seen.run.copies if c.moved]
    assert (found.model, found.buffers_moved, found.live_buffers_moved) == ("Net", buffers, True)
    assert found.moved >= 1
    assert found.evaluated == 6  # of seven, one of which came before it was found
    assert ("ema-buffers" in alarms(seen.run)) is not buffers
    assert not ema._forward_pre_hooks


def test_statistics_refreshed_after_the_model_is_gone_count(tmp_path):
    with observed(tmp_path) as seen:
        net = Net()
        ema, follow = averages(net, buffers=False)
        train(net, 70, follow)
        ema.train()(torch.randn(8, 6))
        del net, ema, follow
    assert all(c.buffers_moved for c in seen.run.copies if c.moved)


def test_no_copy_is_looked_for_where_there_are_no_statistics(tmp_path):
    with observed(tmp_path) as seen:
        net = Net(norm=False)
        train(net, 40, averages(net, buffers=False)[1])
    assert seen.run.copies == ()


def test_training_in_evaluation_mode_is_named_and_frozen_statistics_are_not(tmp_path):
    with observed(tmp_path / "a") as forgotten:
        train(Net().eval(), 25)
    net = Net()
    with observed(tmp_path / "b") as frozen:
        train(net, 25, lambda i: net.norm.eval())
    assert "eval-mode-in-training" in alarms(forgotten.run)
    assert "eval-mode-in-training" not in alarms(frozen.run)


def test_a_layer_made_within_forward_is_named(tmp_path):
    class Anew(Net):
        def forward(self, x):
            return self.head(torch.tanh(nn.Linear(16, 16)(self.fc1(x))))

    with observed(tmp_path / "a") as anew:
        train(Anew(norm=False), 5)
    with observed(tmp_path / "b") as lazy:
        net = nn.Sequential(nn.LazyLinear(8), nn.Tanh(), nn.Linear(8, 3))
        net(torch.zeros(2, 6))
        train(net, 5)
    assert "unregistered-parameters" in alarms(anew.run)
    assert "unregistered-parameters" not in alarms(lazy.run)


def test_slope_and_scale_are_read_off_functional_calls(tmp_path):
    with observed(tmp_path) as seen:
        train(Net(norm=False), 3, scale=300.0)
    trace = seen.run.traces[0]
    (tanh,) = bounded(trace)
    assert tanh.hidden
    assert tanh.at_start < 0.05
    assert [(s.tensor.name, s.fan_in) for s in scales(trace)] == [("fc1.weight", 6), ("head.weight", 16)]


@pytest.mark.parametrize("kind", ["sigmoid", "tanh"])
def test_mean_slope_is_that_of_the_derivative(kind):
    x = 3 * torch.randn(4096, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x.requires_grad_()
    y = getattr(torch, kind)(x)
    y.sum().backward()
    largest = {"sigmoid": 0.25, "tanh": 1.0}[kind]
    y = y.detach()
    slope = mean_slope(kind, float(y.mean()), float(y.std(correction=0)))
    assert slope == pytest.approx(float(x.grad.mean()) / largest)
