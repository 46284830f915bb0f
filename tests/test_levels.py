"""What a loss is worth, how far updates move, and where a run first held a NaN."""

from dataclasses import replace

import numpy as np
import pytest

from whyloss.core.levels import alternates, baselines, own_loss, says_nothing
from whyloss.core.movement import ratios, travelled, warming, weights
from whyloss.core.onset import onset
from whyloss.core.run import Objective, Run
from whyloss.core.sample import falling, flat, sample_run


def pair(shift: float, keys: int = 100, seconds: float = 0.0) -> Run:
    """Two traces, with keys and clocks that far apart, and losses that differ by `shift`."""
    clock = np.arange(200.0)
    a = sample_run(loss=flat(200), signals={"seconds": clock}).traces[0]
    b = sample_run(loss=flat(200) + shift, signals={"seconds": clock + seconds}).traces[0]
    apart = tuple(replace(t, key=t.key + keys) for t in b.tensors)
    return Run(traces=(a, replace(b, index=1, tensors=apart)))


def test_two_losses_on_other_tensors_at_the_same_time_alternate():
    run = pair(1.0)
    assert alternates(run, run.traces[0])
    assert alternates(run, run.traces[1])


@pytest.mark.parametrize("run", [pair(0.0), pair(1.0, keys=0), pair(1.0, seconds=500.0)])
def test_one_loss_the_same_tensors_or_another_time_do_not(run: Run):
    assert not alternates(run, run.traces[0])


def test_a_loss_of_both_signs_says_nothing():
    run = sample_run(loss=np.sin(np.arange(50)))
    assert "both signs" in says_nothing(run, run.traces[0])


def test_baselines_are_the_uniform_and_the_best_constant_prediction():
    trace = sample_run(signals={"target/entropy": 1.5}).traces[0]
    assert [round(b.value, 4) for b in baselines(trace)] == [2.3026, 1.5]


def test_no_baseline_beside_other_loss_ops():
    two = (Objective(kind="cross_entropy", classes=10), Objective(kind="mse_loss"))
    assert baselines(sample_run(objectives=two).traces[0]) == ()
    assert own_loss(sample_run(objectives=two).traces[0]) is None


def test_own_loss_is_the_whole_series_only_where_it_is_the_same():
    loss = falling(200)
    same = sample_run(loss=loss, signals={"objective/value": loss}).traces[0]
    scaled = sample_run(loss=loss / 4, signals={"objective/value": loss}).traces[0]
    assert own_loss(same) is same.loss
    assert own_loss(scaled).first == loss[0]


def test_ratios_and_their_sum():
    trace = sample_run(200, signals={"update/norm[fc1.weight]": 0.0}).traces[0]
    ratio = ratios(trace, weights(trace))
    assert [t.name for t in weights(trace)] == ["fc1.weight", "fc2.weight", "head.weight"]
    assert np.median(ratio.values) == pytest.approx(2e-3, rel=0.1)
    assert travelled(trace, ratio) == pytest.approx(0.4, rel=0.1)


def test_warming_ends_with_the_warm_up():
    up = np.linspace(0, 1e-3, 100)
    assert warming(sample_run(100, signals={"lr[0]": up}).traces[0])
    assert not warming(sample_run(200, signals={"lr[0]": np.r_[up, up[::-1]]}).traces[0])


def test_onset_names_the_tensors_and_the_side():
    bad = {"grad/norm[fc1.weight]": np.where(np.arange(100) < 49, 0.1, np.nan)}
    run = sample_run(loss=np.r_[falling(50), [np.nan] * 50], signals=bad)
    found = onset(run, run.traces[0], 10.0)
    assert (found.loss, found.gradient, found.backward, found.grew) == (50, 49, True, "")
    assert [t.name for t in found.tensors] == ["fc1.weight"]


def test_onset_leaves_out_what_the_loss_scaler_left_out():
    bad = {"grad/norm[fc1.weight]": np.where(np.arange(100) == 3, np.inf, 0.1)}
    run = sample_run(100, signals=bad)
    assert onset(run, run.traces[0], 10.0) is not None
    assert onset(replace(run, skipped_updates=((0, 3),)), run.traces[0], 10.0) is None
