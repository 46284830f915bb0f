"""Arithmetic of core against closed forms and naive calculations."""

import doctest
import importlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whyloss.core.baseline import label_entropy
from whyloss.core.clipping import clip_by_norm, clip_by_value
from whyloss.core.series import ABSENT, NOT_OBSERVED, Series, absent, fall, first_nonfinite, noise, not_observed


@pytest.mark.parametrize("name", ["baseline", "clipping", "sample"])
def test_doctests(name):
    module = importlib.import_module(f"whyloss.core.{name}")
    assert doctest.testmod(module).failed == 0


def test_marks_are_told_from_a_plain_nan():
    """Not observed, gradient None and NaN are three things."""
    values = np.array([1.0, np.nan, NOT_OBSERVED, ABSENT])
    assert not_observed(values).tolist() == [False, False, True, False]
    assert absent(values).tolist() == [False, False, False, True]


def test_entropy_of_equal_labels_is_log_of_their_number():
    assert label_entropy([7] * 10) == pytest.approx(np.log(10))
    assert label_entropy([0, 0]) == 0.0


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_clipping_by_norm_keeps_the_direction_and_the_bound(gradient, limit):
    clipped, g = clip_by_norm(gradient, limit), np.array(gradient)
    assert np.linalg.norm(clipped) <= limit * (1 + 1e-12) or np.array_equal(clipped, g)
    assert np.allclose(clipped * np.linalg.norm(g), g * np.linalg.norm(clipped), atol=1e-6)


def test_clipping_refuses_what_it_cannot_repair():
    for clip in (clip_by_norm, clip_by_value):
        with pytest.raises(ValueError, match="not finite"):
            clip([1.0, float("nan")], 1.0)


def test_noise_of_white_noise_on_a_trend_is_its_deviation():
    rng = np.random.default_rng(0)
    assert noise(np.linspace(5, 1, 4000) + rng.normal(0, 0.1, 4000)) == pytest.approx(0.1, rel=0.1)


def test_fall_takes_medians_of_the_ends():
    result = fall(Series.of([5.0] * 10 + [3.0] * 80 + [1.0] * 10))
    assert result is not None
    assert (result.start, result.end, result.lowest, result.drop) == (5.0, 1.0, 1.0, 4.0)
    assert fall(Series.of([1.0] * 5)) is None


def test_first_nonfinite_step():
    assert first_nonfinite(Series.of([1.0, np.inf, np.nan], steps=[3, 7, 9])) == 7
    assert first_nonfinite(Series.of([1.0])) is None
