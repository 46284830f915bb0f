"""core.initialisation against draws of the initialisers themselves and against weights that were changed since."""

import math

import numpy as np
import pytest

from whyloss.core.initialisation import looks_default, looks_untrained, untrained
from whyloss.core.run import Tensor


def tensor(values, kind="Linear", dtype="float32"):
    v = np.asarray(values, dtype=np.float64)
    figures = {"std": float(v.std()), "mean": float(v.mean()), "largest": float(np.abs(v).max())}
    return Tensor(key=0, name="w", module="m", kind=kind, shape=v.shape, dtype=dtype, **figures)


def uniform(rng, shape, bound):
    return rng.uniform(-bound, bound, shape)


def normal(rng, shape, std):
    return rng.normal(0.0, std, shape)


def truncated(rng, shape, std):
    v = rng.normal(0.0, 1.0, shape)
    while np.any(far := np.abs(v) > 2):
        v[far] = rng.normal(0.0, 1.0, int(far.sum()))
    return std * v


def trained(rng, shape):
    """A fresh weight plus what gradient descent adds: a few directions, larger than the noise."""
    fan_in = math.prod(shape[1:])
    fresh = uniform(rng, (shape[0], fan_in), fan_in**-0.5)
    left, right = rng.normal(size=(shape[0], 3)), rng.normal(size=(3, fan_in))
    return (fresh + fan_in**-0.5 * left @ right).reshape(shape)


def orthogonal(rng, shape):
    return np.linalg.qr(rng.normal(size=shape))[0]


SHAPES = [(64, 64), (10, 32), (6, 6, 3, 3), (16, 8, 3), (256, 784), (128, 512)]
DRAWS = range(60)


@pytest.mark.parametrize("shape", SHAPES)
def test_pytorchs_own_linear_and_convolutions(shape):
    """U(±1/√fan_in) is recognised in nearly every draw, and so is Xavier's."""
    bounds = [math.prod(shape[1:]) ** -0.5, math.sqrt(6 / (shape[0] * math.prod(shape[2:]) + math.prod(shape[1:])))]
    for bound in bounds:
        verdicts = [looks_default(tensor(uniform(np.random.default_rng(i), shape, bound))) for i in DRAWS]
        assert sum(v is True for v in verdicts) >= len(DRAWS) - 1


@pytest.mark.parametrize("shape", SHAPES)
def test_trained_weights_say_no(shape):
    """Never PyTorch's own; a std that is a customary one by accident happens to one weight in five at the most."""
    weights = [tensor(trained(np.random.default_rng(i), shape)) for i in DRAWS]
    assert not any(looks_default(w) for w in weights)
    assert sum(looks_untrained(w) is True for w in weights) <= len(DRAWS) // 5
    assert untrained(weights) is False


@pytest.mark.parametrize("factor", [0.5, 0.9, 1.1, 3.0])
def test_scaled_weights_say_no(factor):
    values = uniform(np.random.default_rng(0), (128, 64), 64**-0.5)
    assert looks_untrained(tensor(factor * values)) is False


def test_recurrent_weights_have_the_bound_of_the_hidden_size():
    rng = np.random.default_rng(0)
    assert looks_default(tensor(uniform(rng, (4 * 24, 7), 24**-0.5), "LSTM")) is True
    assert looks_default(tensor(uniform(rng, (3 * 48, 24), 48**-0.5), "GRU")) is True
    assert looks_default(tensor(uniform(rng, (3 * 48, 24), 24**-0.5), "GRU")) is False


def test_embeddings_are_standard_normal_with_or_without_a_padding_row():
    values = normal(np.random.default_rng(0), (40, 16), 1.0)
    padded = values.copy()
    padded[0] = 0.0
    assert looks_default(tensor(values, "Embedding")) is True
    assert looks_default(tensor(padded, "Embedding")) is True
    assert looks_untrained(tensor(0.6 * values, "Embedding")) is False


@pytest.mark.parametrize(
    "draw",
    [
        lambda rng: normal(rng, (128, 64), 0.02),
        lambda rng: normal(rng, (128, 64), math.sqrt(2 / 64)),
        lambda rng: normal(rng, (128, 64), math.sqrt(2 / (64 + 128))),
        lambda rng: uniform(rng, (128, 64), math.sqrt(6 / 64)),
        lambda rng: uniform(rng, (128, 64), math.sqrt(6 / 128)),
        lambda rng: truncated(rng, (128, 64), 0.02),
        lambda rng: orthogonal(rng, (128, 64)),
    ],
    ids=["N(0, 0.02)", "Kaiming normal", "Xavier normal", "Kaiming uniform", "fan-out", "truncated", "orthogonal"],
)
def test_customary_initialisers(draw):
    """Recognised as fresh, and as not PyTorch's own."""
    values = [tensor(draw(np.random.default_rng(i))) for i in DRAWS]
    assert sum(looks_untrained(v) is True for v in values) >= len(DRAWS) - 3
    assert not any(looks_default(v) for v in values)


@pytest.mark.parametrize("spread", [0.03, 0.1, 0.3])
def test_normal_weights_of_another_scale_or_with_heavy_tails_say_no(spread):
    rng = np.random.default_rng(0)
    heavy = 0.02 * rng.standard_t(4, (128, 64)) / math.sqrt(2)
    assert looks_untrained(tensor(normal(rng, (128, 64), 0.02 * (1 + spread)))) is False
    assert looks_untrained(tensor(heavy)) is False


def test_half_precision_rounds_past_the_bound():
    values = uniform(np.random.default_rng(0), (64, 64), 0.125)
    values[0, 0] = 0.125 * (1 + 2**-9)
    assert looks_default(tensor(values, dtype="bfloat16")) is True
    assert looks_default(tensor(values)) is False


@pytest.mark.parametrize(
    "silent",
    [
        tensor(np.ones((64, 64)), "LayerNorm"),
        tensor(np.zeros((64, 64))),
        tensor(uniform(np.random.default_rng(0), (64,), 0.1)),
        tensor(uniform(np.random.default_rng(0), (4, 4), 0.5)),
        Tensor(key=0, name="w", module="m", kind="Linear", shape=(64, 64)),
        Tensor(key=0, name="w", module="m", kind="Linear", shape=(64, 64), std=math.nan, mean=0.0, largest=1.0),
    ],
    ids=["norm layer", "zeros", "vector", "16 values", "not read", "NaN"],
)
def test_what_cannot_be_told(silent):
    assert looks_untrained(silent) is None
    assert looks_default(silent) is None


def test_a_group_is_judged_by_its_values():
    """A fresh head of 1 % on a trained backbone leaves the whole trained; nothing judged says nothing."""
    rng = np.random.default_rng(0)
    backbone, head = tensor(trained(rng, (256, 256))), tensor(uniform(rng, (4, 256), 1 / 16))
    assert untrained([backbone, head]) is False
    assert untrained([head]) is True
    assert untrained([tensor(np.zeros((8, 8)))]) is None
