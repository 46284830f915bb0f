"""When one more step is worth recording."""

import math

import numpy as np
import pytest

from whyloss.core.suspicion import MOST, PAUSE, Suspicion


def noisy(n, level=1.0, seed=0):
    return level * (1 + 0.05 * np.random.default_rng(seed).standard_normal(n))


def looks(losses, gradients=None):
    """Update → reason, of a run with these figures."""
    suspicion = Suspicion()
    gradients = np.ones(len(losses)) if gradients is None else gradients
    told = ((i, suspicion.look(0, x, g)) for i, (x, g) in enumerate(zip(losses, gradients, strict=True)))
    return {i: reason for i, reason in told if reason}


def falling(n):
    return 2.0 * 0.98 ** np.arange(n) * noisy(n)


def test_a_healthy_run_is_never_suspicious():
    assert looks(falling(400), falling(400)) == {}


def test_a_jump_of_the_loss():
    assert looks([*falling(80), 9.0, *falling(20)]) == {80: "the loss jumped to 9"}


def test_a_jump_of_the_gradient_norm():
    assert looks(falling(100), [*noisy(80), 50.0, *noisy(19)]) == {80: "the gradient norm jumped to 50"}


def test_a_smooth_loss_that_rises_a_little_has_not_jumped():
    """The deviation of a constant is 0: anything would be many of them above it."""
    assert looks([1.0] * 80 + [1.5] * 10) == {}


@pytest.mark.parametrize("updates", [10, 49])
def test_a_jump_is_held_against_fifty_updates(updates):
    assert looks([*noisy(updates), 100.0]) == {}


def test_a_negative_loss_can_jump():
    assert list(looks([*noisy(60, -3.0), 40.0])) == [60]


def test_values_that_are_not_finite_are_passed_over():
    """They are caught elsewhere, and they spoil no median."""
    losses = [*noisy(60), math.nan, math.inf, -math.inf, *noisy(20), 30.0]
    assert looks(losses, [*noisy(60), math.inf, math.nan, math.nan, *noisy(21)]) == {83: "the loss jumped to 30"}


def test_the_beginning_of_a_plateau_is_told_once():
    losses = np.concatenate([np.linspace(5, 1, 150), noisy(600)])
    told = looks(losses)
    assert list(told.values()) == ["the loss stopped falling"]
    assert 250 <= next(iter(told)) <= 360


def test_two_plateaus_are_two():
    """A loss that falls again, and stops again."""
    losses = np.concatenate([noisy(400, 4.0), np.linspace(4, 1, 200), noisy(400, 1.0, seed=1)])
    assert list(looks(losses).values()) == ["the loss stopped falling"] * 2


def test_there_are_at_most_four_with_a_pause_between():
    losses = noisy(3000)
    losses[60::70] = 50.0
    told = list(looks(losses))
    assert len(told) == MOST
    assert min(np.diff(told)) >= PAUSE


def test_each_optimizer_is_held_against_its_own_past():
    suspicion = Suspicion()
    told = [suspicion.look(i % 2, loss, 1.0) for i, loss in enumerate(np.tile([0.1, 100.0], 150))]
    assert set(told) == {""}
    assert suspicion.look(0, 100.0, 1.0) == "the loss jumped to 100"


def test_the_four_are_of_all_optimizers_together():
    suspicion = Suspicion()
    for trace in range(8):
        for loss in noisy(60):
            suspicion.look(trace, loss, 1.0)
    told = []
    for _ in range(20):
        for trace in range(8):
            told += [suspicion.look(trace, 100.0, 1.0)] + [suspicion.look(trace, x, 1.0) for x in noisy(60)]
    assert sum(map(bool, told)) == MOST
