"""The first non-finite value of a step: op, line and phase, and silence where nothing is wrong."""

from dataclasses import replace

import msgspec
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from nonfinite_cases import CASES, GUILTY, INF, Net, data, located
from whyloss.core.location import Location, Phase
from whyloss.tape.locate import locate
from whyloss.tape.recording import recording
from whyloss.tape.replay import replay
from whyloss.tape.taint import Taint

pytestmark = pytest.mark.filterwarnings("ignore")


def found(model, *losses, optimizer=None):
    """What is located in a step with these micro-batches."""
    with recording(model, optimizer) as step:
        for loss in losses:
            loss().backward()
    return locate(step.tape())


def told(location: Location) -> str:
    """What stands for the op: the op itself, the leaf, or the parameter."""
    if location.leaf is not None:
        return f"{location.leaf.role} {location.leaf.name}"
    return f"parameter {location.place.parameter}" if location.phase is Phase.OVERFLOW else location.op


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_location(case):
    """Phase, op and line are right; a healthy step has none."""
    location = located(case)
    assert location.phase == case.phase, location.text
    assert told(location).endswith(case.op), location.text
    assert not case.aten or location.aten == case.aten
    if case.line is not None:
        assert location.place.line == case.line
        assert GUILTY in location.place.source
    if case.rows is not None:
        assert location.leaf.values.rows == case.rows
    assert location.doubts == ()


def test_cases_are_complete():
    """All sixteen of the reference are there, thirteen of them failing, and names are unique."""
    reference = [c for c in CASES if c.reference]
    assert len(reference) == 16
    assert sum(c.phase != "none" for c in reference) == 13
    assert len({c.name for c in CASES}) == len(CASES)


def test_location_goes_through_json():
    """A journal holds it: nothing that JSON has no word for."""
    for case in (c for c in CASES if c.reference or c.phase in ("leaf", "overflow")):
        location = located(case)
        assert msgspec.json.decode(msgspec.json.encode(location), type=Location) == location


def test_details():
    """The ranges of the inputs, what they became, and the sentence."""
    location = located(next(c for c in CASES if c.name == "in-place division by 0"))
    value, scale = location.inputs
    assert (scale.low, scale.high, scale.shape, scale.dtype) == (0.0, 2.0, (3,), "float32")
    assert value.shape == (6, 3)
    assert value.nonfinite == 0  # as it was before the call
    assert (location.became.positive, location.became.elements, location.became.columns) == (6, 18, (1,))
    assert location.text.startswith("torch.Tensor.div_ gives inf in 6 of 18 elements from [")
    assert "fc1.weight" in location.gradients


def test_backward_tells_the_inputs_of_the_forward_call():
    location = located(next(c for c in CASES if c.name == "distance matrix with its diagonal"))
    assert [(r.low, r.shape) for r in location.inputs] == [(0.0, (6, 6))]


def test_module_is_named():
    location = located(next(c for c in CASES if c.name.startswith("layer norm by hand")))
    assert location.module == "2"


def test_nothing_is_changed():
    """Under the taint a replay gives the same bits, and the generators and leaves stay as they were."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Linear(8, 1))
    x = data()
    with recording(model) as step:
        torch.sqrt(model(x) * 0).mean().backward()
    tape = step.tape()
    before = {n: leaf.value.clone() for n, leaf in tape.leaves.items()}
    state, parameters = torch.get_rng_state(), [p.detach().clone() for p in model.parameters()]
    plain = replay(tape)
    with Taint() as taint:
        watched = replay(tape, watch=lambda i, op: taint.begins(i))
    assert locate(tape).aten == "SqrtBackward0"
    same = {"rtol": 0, "atol": 0, "equal_nan": True}
    for n, gradient in plain.gradients.items():
        torch.testing.assert_close(gradient, watched.gradients[n], **same)
    torch.testing.assert_close(plain.losses, watched.losses, **same)
    torch.testing.assert_close(before, {n: leaf.value for n, leaf in tape.leaves.items()}, **same)
    torch.testing.assert_close(parameters, [p.detach() for p in model.parameters()], **same)
    assert torch.equal(state, torch.get_rng_state())


def test_unfaithful_tape_is_doubted():
    model, x = Net(), data()
    with recording(model) as step:
        torch.log(model(x) * 0).mean().backward()
    location = locate(replace(step.tape(), faithful=False, reason="a hook"))
    assert location.op == "torch.log"
    assert location.doubts == ("the tape is not faithful: a hook",)


def test_second_micro_batch():
    """Of several backward calls, the one that fails is the one that is told."""
    model, good, bad = Net(), data(), data()
    bad[1] = float("nan")
    location = found(model, lambda: model(good).pow(2).mean(), lambda: model(bad).pow(2).mean())
    assert (location.phase, location.leaf.role, location.leaf.values.rows) == ("leaf", "input", (1,))


def test_gradient_left_from_before():
    """Not cleared, and non-finite before the step."""
    model, x = Net(), data()
    model.fc2.bias.grad = torch.tensor([0.0, float("nan"), 0.0])
    location = found(model, lambda: model(x).pow(2).mean())
    assert (location.phase, location.leaf.name, location.gradients) == ("leaf", "fc2.bias", ("fc2.bias",))
    assert "before the step's first backward" in location.text


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed(reentrant):
    """The backward of a checkpointed block runs its calls anew."""
    model, x = Net(), data().requires_grad_()

    def block(h):
        return torch.sqrt(h * 0)

    model.ending = lambda h: checkpoint(block, h, use_reentrant=reentrant)
    location = found(model, lambda: model(x).mean())
    assert (location.phase, location.op) == ("backward", "torch.sqrt")


def test_gradient_penalty():
    """The norm of a gradient that is 0: non-finite in the backward of a backward."""
    model, x = Net(), data().requires_grad_()
    model.fc1.weight.data.zero_()

    def loss():
        (gradient,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
        return ((gradient.pow(2).sum(1).sqrt() - 1) ** 2).mean()

    location = found(model, loss)
    assert (location.phase, location.op, location.aten) == ("backward", "torch.Tensor.sqrt", "SqrtBackward0")


def test_two_faults_the_first_is_told():
    model, x = Net(), data()

    def loss():
        h = model(x)
        return (torch.exp(h * 1e4) + torch.log(h * 0)).mean()

    assert found(model, loss).op == "torch.exp"


def test_masked_away_beside_a_fault():
    """A NaN gradient that a mask removes is not the one that reaches the weights."""
    model, x, keep = Net(), data(), torch.tensor([1, 0, 1, 1, 1, 1]).bool()

    def loss():
        h = model(x)
        spread = h.masked_fill(~keep[:, None], 0.0).std(dim=1)[keep].mean()
        return spread + torch.sqrt((h * 0).sum())

    location = found(model, loss)
    assert (location.op, location.aten) == ("torch.sqrt", "SqrtBackward0")


def test_where_takes_one_side():
    """An infinity that `where` leaves out is not mixed up with one that it lets through."""
    model, x = Net(), data()

    def loss():
        h = model(x)
        left, right = torch.log(h.detach() * 0), torch.exp(h * 0 + 1000)
        return torch.where(torch.tensor([True, False, False]), h, right).mean() + (left * 0 == 0).float().sum()

    assert found(model, loss).op == "torch.exp"


def test_mask_in_the_same_tensor_as_an_overflow():
    """Elements are told apart: the overflow is new, the mask is not."""
    model, x = Net(), data()

    def loss():
        h = model(x).masked_fill(torch.tensor([False, True, False]), -INF)
        h = h.exp() + torch.exp(h + 1000)
        return h[:, 0].mean()

    location = found(model, loss)
    assert (location.op, location.text.count("on purpose")) == ("torch.exp", 0)


def test_sparse_gradients():
    model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    location = found(model, lambda: torch.sqrt(model(torch.tensor([1, 2, 2])) * 0).mean())
    assert (location.op, location.gradients) == ("torch.sqrt", ("0.weight", "1.weight", "1.bias"))


def test_complex_numbers():
    model, x = nn.Linear(8, 8), data(width=8)

    def loss():
        spectrum = torch.fft.rfft(model(x))
        return (spectrum / (spectrum * 0)).abs().mean()

    assert found(model, loss).op == "torch.Tensor.div"


def test_custom_function_forward():
    class Inverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 1 / x

        @staticmethod
        def backward(ctx, g):
            return g

    model, x = Net(), data()
    location = found(model, lambda: Inverse.apply(model(x) * 0).mean())
    assert (location.phase, location.op.split(".")[-1], location.aten) == ("forward", "Inverse", "aten::reciprocal")


def test_adam_squares_in_half():
    """Gradients of 1000 are finite in half precision, their squares are not."""
    model, x = nn.Linear(4, 2).half(), torch.full((1, 4), 1000.0).half()
    location = found(model, lambda: model(x).float().sum(), optimizer=torch.optim.Adam(model.parameters()))
    assert (location.phase, location.place.parameter) == ("overflow", "weight")
    assert "squares" in location.text
    plain = found(model, lambda: model(x).float().sum(), optimizer=torch.optim.SGD(model.parameters()))
    assert plain.phase == "none"


def test_float64_gradients_are_not_held_against_float32():
    model, x = nn.Linear(4, 2).double(), torch.full((1, 4), 1e30).double()
    assert found(model, lambda: model(x).sum()).phase == "none"


def test_autocast_backward():
    """A scaled loss that overflows in the half-precision backward, as under a loss scaler."""
    model, x = Net(), data()

    def loss():
        with torch.autocast("cpu", dtype=torch.float16):
            h = model(x)
        return h.float().sum() * 65536.0

    location = found(model, loss)
    assert (location.phase, location.module) == ("backward", "")
    assert location.op == "torch.Tensor.float"


def test_lstm_input():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.fc = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 2)

        def forward(self, sequence):
            return self.fc(self.lstm(sequence)[0][:, -1])

    model, x = Reader(), torch.randn(6, 5, 4)
    x[2, 3] = INF
    location = found(model, lambda: F.cross_entropy(model(x) * 1.0, torch.tensor([0, 1] * 3)) + x.sum())
    assert (location.phase, told(location), location.leaf.values.rows) == ("leaf", "input sequence", (2,))
    assert location.place.line is not None


def test_parameters_that_bad_data_spoilt():
    """Data come first: where both hold NaN, the weights may have it from them."""
    model, x = Net(), data()
    x[0] = float("nan")
    model.fc1.weight.data[0] = float("nan")
    assert told(found(model, lambda: model(x).pow(2).mean())) == "input x"


def finite(model):
    return all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def log_of_minus(loss):
    return torch.log(-1 - loss.abs())


def root_of_zero(loss):
    return torch.sqrt(loss * 0).sum()


HEALTHY = [c for c in CASES if c.phase == "none"]


@pytest.mark.parametrize("case", HEALTHY, ids=lambda c: c.name)
def test_fault_after_a_healthy_step(case):
    """What is fine in a healthy step is not blamed when something behind it fails."""
    for fault, phase, op in ((log_of_minus, "forward", "torch.log"), (root_of_zero, "backward", "torch.sqrt")):
        torch.manual_seed(0)
        model, step = case.build()
        location = found(model, lambda step=step, fault=fault: fault(step()))
        right = (location.phase, location.op) == (phase, op)
        assert right or (location.phase == "none" and finite(model)), location.text  # a clamp may stop it


@pytest.mark.parametrize("case", HEALTHY, ids=lambda c: c.name)
def test_fault_before_a_healthy_step(case):
    """Nor when something before it fails: NaN out of the first layer, infinity out of it."""
    for spoil in (log_of_minus, lambda o: torch.exp(o * 0 + 1000)):
        torch.manual_seed(0)
        model, step = case.build()
        first = next(m for m in model.modules() if isinstance(m, nn.Linear | nn.LSTM | nn.Embedding))
        first.register_forward_hook(lambda m, i, o, f=spoil: (f(o[0]), o[1]) if isinstance(o, tuple) else f(o))
        location = found(model, step)
        fine = location.phase == "none" and step().isfinite().all() and finite(model)
        assert fine or location.op in ("torch.log", "torch.exp"), location.text


def test_leaf_that_may_not_be_the_one():
    """A row of NaN that the loss leaves out, beside a fault of another row: both are told."""
    model, x = Net(), data()
    x[3] = float("nan")

    def loss():
        h = model(x)[:3]
        return torch.log(-1 - h.abs()).mean()

    location = found(model, loss)
    assert location.op == "torch.log" or "torch.log" in location.doubts[0]


def test_bad_data_alone_leave_no_doubt():
    model, x = Net(), data()
    x[3] = float("nan")
    assert found(model, lambda: model(x).mean()).doubts == ()


def test_eight_bit_floats():
    """The taint alone: statistics of such a tensor can't be taken as they are."""
    with Taint() as taint:
        taint.begins(0)
        small = (torch.full((3,), 1e6)).to(torch.float8_e5m2)
        taint.begins(1)
        wide = small.float()
    arisen = taint.cause([wide])
    assert (arisen.op, arisen.aten, arisen.became.positive) == (0, "aten::_to_copy", 3)


def test_memory_that_is_filled_in_parts():
    """A tensor is not blamed for what it held before it was overwritten."""
    model, x = Net(), data()

    def loss():
        h = model(x)
        out = torch.empty(6, 3)
        out.fill_(float("nan"))
        for i in range(6):
            out[i] = h[i]
        return torch.sqrt(out * 0).sum()

    location = found(model, loss)
    assert (location.phase, location.op) == ("backward", "torch.sqrt")
