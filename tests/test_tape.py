"""A tape gives the same bits again or says why not, and recording one changes nothing of the training."""

import copy
import dataclasses
import io
import math
import pickle
import random
import shutil
import subprocess
import sys
import threading
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.utils import counters
from torch.autograd.function import _SingleLevelFunction
from torch.optim import optimizer as optimizers
from torch.overrides import _get_current_function_mode_stack

import tape_models
from tape_models import CASES, Counting, Cube, data, mlp, simple
from tape_table import Row, make, row, table, tapes_of, written
from whyloss.tape import numbers, record
from whyloss.tape import recording as recordings
from whyloss.tape.fingerprint import fingerprint
from whyloss.tape.numbers import Numbers
from whyloss.tape.prove import prove
from whyloss.tape.record import Recorder
from whyloss.tape.recording import Recording, gradients_of, names_of, paths_of, recording
from whyloss.tape.replay import replay
from whyloss.tape.statistics import Pending, _later, look
from whyloss.tape.tape import BACKWARD, Ref, Role

RECORDED = (0, 1, 3)
BACKWARD_OF_TORCH, BACKWARD_OF_TENSORS = torch.autograd.backward, torch.Tensor.backward
CLEAR = torch.clear_autocast_cache
JIT = "ignore:`torch.jit"  # what inductor imports
DYNAMO = "ignore:The .grad attribute of a Tensor that is not a leaf"  # it reads it of every tensor
ROWS: dict[str, Row] = {}


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    assert torch.autograd.backward is BACKWARD_OF_TORCH
    assert torch.clear_autocast_cache is CLEAR
    assert "apply" not in vars(_SingleLevelFunction)
    assert torch.Tensor.backward is BACKWARD_OF_TENSORS
    assert not _get_current_function_mode_stack()
    assert not optimizers._global_optimizer_pre_hooks
    assert not optimizers._global_optimizer_post_hooks
    assert torch._dynamo.eval_frame._callback_from_stance.__module__ == "torch._dynamo.eval_frame"


@pytest.fixture
def allowed(request):
    """What torch itself warns of in a case."""
    with warnings.catch_warnings():
        for text in CASES[request.getfixturevalue("name")].warns:
            warnings.filterwarnings("ignore", message=f".*{text}")
        yield


def bits(value):
    """Everything that is in it, as plain data."""
    if isinstance(value, torch.Tensor):
        return fingerprint(value), value.requires_grad
    if isinstance(value, nn.Module):
        return bits(dict(value.state_dict())), [m.training for m in value.modules()]
    if isinstance(value, torch.Generator):
        return bits(value.get_state())
    if isinstance(value, dict):
        return {k: bits(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [bits(v) for v in value]
    return getattr(value, "calls", value if isinstance(value, str | int | float | bool) else None)


def state_of(training):
    modules = list(training.model.modules())
    hooks = [len(h) for m in modules for h in (m._forward_hooks, m._forward_pre_hooks, m._backward_hooks)]
    gradients = [None if p.grad is None else bits(p.grad) for p in training.model.parameters()]
    moments = [bits(list(o.state.values())) for o in training.optimizers]
    generators = bits(torch.get_rng_state()), random.getstate(), np.random.get_state()[1].tolist()
    return bits(training.model), gradients, moments, generators, hooks, {k: bits(v) for k, v in training.keep.items()}


def seeded(case):
    random.seed(0)
    np.random.seed(0)
    counters.clear()
    return make(case)


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_replayed_and_its_training_unchanged(name, allowed):
    case = CASES[name]
    bare = seeded(case)
    for _ in range(5):
        bare.step()
    expected, graphs = state_of(bare), counters["stats"]["unique_graphs"]
    training = seeded(case)
    for i in range(5):
        if i not in RECORDED:
            training.step()
            continue
        with recording(training.model) as step:
            training.step()
        assert not step.recorder.broken
        tapes = step.tapes()
        check(case, tapes)
        ROWS.setdefault(name, row(case, tapes))
    assert state_of(training) == expected
    assert counters["stats"]["unique_graphs"] == graphs


def check(case, tapes):
    *others, last = tapes
    assert all(tape.faithful for tape in others), [tape.reason for tape in others]
    assert last.faithful == (not case.reason), last.reason
    assert case.reason in last.reason
    assert set(case.ops) <= {op.name for op in (*last.ops, *last.aside)}
    for tape in tapes:
        assert tape.tolerance == 0
        assert all(n in tape.values for op in (*tape.ops, *tape.aside) for n in (*op.inputs, *op.outputs))


@pytest.mark.filterwarnings("ignore")
def test_the_document_has_the_table_of_these_steps():
    """Else: make tape-table"""
    rows = [ROWS[name] if name in ROWS else row(case, tapes_of(make(case))) for name, case in CASES.items()]
    assert written() == table(rows)


@pytest.mark.filterwarnings(DYNAMO, JIT)
@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")
def test_code_that_a_compiler_rewrote_is_compared_within_a_tolerance():
    counters.clear()
    torch.manual_seed(0)
    training = tape_models.compiled_inductor()
    training.step()
    graphs = counters["stats"]["unique_graphs"]
    with recording(training.model) as step:
        training.step()
    tape = step.tape()
    assert tape.faithful, tape.reason
    assert 0 < tape.tolerance < 1e-3
    assert {leaf.name for leaf in tape.of(Role.PARAMETER)} == {
        f"{layer}.{kind}" for layer in ("first", "norm", "last") for kind in ("weight", "bias")
    }
    assert counters["stats"]["unique_graphs"] == graphs
    weight = tape.named("last.weight")
    other = replace(tape, leaves=tape.leaves | {weight.index: replace(weight, value=weight.value * 1.1)})
    part = step.parts[-1]
    assert "which runs compiled" in prove(other, part.losses, part.gradients, part.near).reason


@pytest.mark.filterwarnings(DYNAMO)
def test_a_compiled_function_ends_the_recording_and_nothing_else():
    def training():
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, (x, y) = mlp(6, 8, 3), data()
        loss = torch.compile(lambda out: F.cross_entropy(out, y), backend="eager")
        return simple(model, lambda: loss(model(x)))

    bare = training()
    bare.step()
    bare.step()
    seen = training()
    counters.clear()
    for _ in range(2):
        with recording(seen.model) as step:
            seen.step()
        assert "a compiled function" in step.recorder.broken
        with pytest.raises(ValueError, match="a compiled function"):
            step.tape()
    assert state_of(seen) == state_of(bare)
    assert counters["stats"]["unique_graphs"] == 1


FRESH = """
import sys, torch
from whyloss.tape.recording import recording

assert "torch._dynamo.eval_frame" not in sys.modules
layer, x, original = torch.nn.Linear(4, 4), torch.randn(3, 4), torch.compile
with recording(layer) as step:
    torch.compile(layer, backend="eager")(x).sum().backward()
assert "a compiled function" in step.recorder.broken, step.recorder.broken
assert torch.compile is original
assert torch._dynamo.eval_frame._callback_from_stance.__module__ == "torch._dynamo.eval_frame"
"""


def test_a_compiler_that_is_loaded_within_the_step_is_noticed():
    done = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# -- what stands on a tape


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)
        self.register_buffer("shift", torch.ones(6))

    def forward(self, x, *, scale):
        return self.head(self.body(x * scale + self.shift))


def plain():
    torch.manual_seed(0)
    return Plain(), *data()


def test_roles_names_modules_and_lines():
    model, x, y = plain()
    scale = torch.tensor(2.0)
    with recording(model, torch.optim.Adam(model.parameters())) as step:
        F.cross_entropy(model(x, scale=scale), y).backward()
    tape = step.tape()
    roles = {(leaf.role.value, leaf.name) for leaf in tape.leaves.values()}
    assert {("input", "x"), ("input", "scale"), ("target", ""), ("buffer", "shift")} < roles
    assert ("parameter", "body.0.weight") in roles
    modules = [(op.name.rpartition(".")[2], op.module) for op in tape.ops]
    assert modules == [
        ("mul", ""), ("add", ""), ("linear", "body.0"), ("relu", "body.1"), ("linear", "head"),
        ("cross_entropy", ""), ("backward", ""),
    ]  # fmt: skip
    assert tape.ops[0].place.source == "return self.head(self.body(x * scale + self.shift))"
    assert tape.ops[-1].place.source == "F.cross_entropy(model(x, scale=scale), y).backward()"
    assert {op.place.file for op in tape.ops} == {__file__}
    assert tape.values[tape.named("shift").index].statistics.mean == 1.0
    assert tape.setup is not None
    assert tape.setup.kind is torch.optim.Adam


def test_a_part_ends_with_the_update_of_its_optimizer():
    torch.manual_seed(0)
    training = CASES["adversarial_networks"].make()
    d, g = training.optimizers
    for optimizer, prefix in ((d, "d."), (g, "g.")):
        with recording(training.model, optimizer) as step:
            training.step()
        (tape,) = step.tapes()
        assert tape.faithful, tape.reason
        trained = {tape.leaves[n].name for group in tape.setup.groups for n in group["params"]}
        assert trained == {name for name, _ in training.model.named_parameters() if name.startswith(prefix)}


def test_each_closure_call_is_a_part():
    torch.manual_seed(0)
    training = CASES["lbfgs"].make()
    with recording(training.model, *training.optimizers) as step:
        training.step()
    tapes = step.tapes()
    assert len(tapes) > 2
    assert all(tape.faithful and len(tape.losses) == 1 for tape in tapes)
    assert len({fingerprint(tape.named("0.weight").value) for tape in tapes}) == len(tapes)


def test_one_recorder_over_several_steps():
    model, x, y = plain()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    recorder = Recorder(names_of(model), paths_of(model))
    for i in range(3):
        recorder.start()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, scale=2.0), y)
        place = recorder.backward_begins(loss, {})
        recorder.leave()
        loss.backward()
        tape = recorder.tape([place])
        assert prove(tape, [loss.detach()], gradients_of(recorder)).faithful
        assert len(tape.losses) == 1
        optimizer.step()
        recorder.updated()
        if i == 1:
            with torch.no_grad():
                model.head.weight.data.mul_(0.5)
        recorder.enter()
        recorder.stop()
    assert len([leaf for leaf in recorder.leaves.values() if leaf.name == "head.weight"]) == 3


def test_a_replay_leaves_running_statistics_on_the_tape_alone():
    """Batch norm writes them in its kernel, without a new version of the tensor."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    with recording(model) as step:
        model(torch.randn(8, 3)).sum().backward()
    tape = step.tape()
    assert torch.equal(tape.named("1.running_mean").value, torch.zeros(4))
    assert torch.equal(tape.named("1.running_var").value, torch.ones(4))


def test_without_copies_leaves_are_the_tensors_themselves():
    model, x, y = plain()
    recorder = Recorder(names_of(model), paths_of(model), copy=False)
    recorder.start()
    loss = F.cross_entropy(model(x, scale=2.0), y)
    place = recorder.backward_begins(loss, {})
    recorder.stop()
    tape = recorder.tape([place])
    assert tape.named("head.weight").value.data_ptr() == model.head.weight.data_ptr()
    assert all(value.statistics is None for value in tape.values.values())


def test_copies_have_a_limit():
    model, x, _ = plain()
    recorder = Recorder(names_of(model), paths_of(model), most_bytes=100)
    recorder.start()
    out = model(x, scale=2.0)
    recorder.stop()
    assert "need more than" in recorder.broken
    assert out.shape == (12, 3)


# -- never silently wrong


def a_tape():
    model, x, y = plain()
    with recording(model) as step:
        F.cross_entropy(model(x, scale=2.0), y).backward()
    return step.tape(), step.parts[-1]


def test_a_changed_tape_is_not_called_faithful():
    tape, part = a_tape()
    assert tape.faithful
    weight = tape.named("head.weight")
    i = next(i for i, op in enumerate(tape.ops) if op.args[1:] == (2.0,))
    relu = next(i for i, op in enumerate(tape.ops) if op.name.endswith("relu"))
    given, made = tape.ops[relu].args[0], tape.ops[relu].out
    without = [replace(op, args=tuple(given if a == made else a for a in op.args)) for op in tape.ops]
    doubled = replace(tape.ops[i], args=(tape.ops[i].args[0], 2.1))
    tampered = {
        "loss 0 is": replace(tape, leaves=tape.leaves | {weight.index: replace(weight, value=weight.value * 1.01)}),
        "loss 0 is ": replace(tape, ops=(*tape.ops[:i], doubled, *tape.ops[i + 1 :])),
        "loss 0": replace(tape, ops=tuple(op for i, op in enumerate(without) if i != relu)),
        "the replay failed": replace(tape, ops=(*tape.ops[:relu], *tape.ops[relu + 1 :])),
        "the gradient of": replace(tape, leaves=tape.leaves | {weight.index: replace(weight, before=weight.value)}),
    }
    for reason, other in tampered.items():
        proved = prove(other, part.losses, part.gradients)
        assert not proved.faithful
        assert proved.reason.startswith(reason)
    assert "arrives in one of them only" in prove(tape, part.losses, part.gradients | {weight.index: None}).reason


class Away(torch.autograd.Function):
    """As libraries write gradient checkpointing of their own."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, grad):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            out = ctx.run(x)
        torch.autograd.backward(out, grad)
        return None, x.grad


def test_a_function_that_is_given_a_module_is_never_called_by_a_replay():
    model, x, y = plain()
    with recording(model) as step:
        h = Away.apply(model.body, x.clone().requires_grad_())
        F.cross_entropy(model.head(h), y).backward()
    before = bits([p.grad for p in model.parameters()])
    tape = step.tape()
    assert "Away is given code to call" in tape.reason
    assert bits([p.grad for p in model.parameters()]) == before


def test_a_batch_that_is_changed_behind_torch_is_noticed():
    model, x, y = plain()
    array = x.numpy()
    with recording(model) as step:
        out = model(x, scale=2.0)
        array[:] = 0
        (F.cross_entropy(out, y) + model(x, scale=1.0).mean()).backward()
    assert not step.tape().faithful


def test_another_thread_is_not_recorded():
    model, x, y = plain()
    with recording(model) as step:
        loss = F.cross_entropy(model(x, scale=2.0), y)
        other = threading.Thread(target=lambda: Cube.apply(torch.ones(3, requires_grad=True)).sum().backward())
        other.start()
        other.join()
        loss.backward()
    assert step.tape().faithful
    assert not [op for op in step.recorder.ops if "Cube" in op.name]
    assert len([op for op in step.recorder.ops if op.name == BACKWARD]) == 1


# -- nothing of the user's is touched


class Broken(nn.Module):
    def forward(self, x):
        raise KeyError("the user's own")


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        raise KeyError("the user's own")


@pytest.mark.parametrize("fails", ["forward", "backward", "call", "closure"])
def test_what_the_user_raises_passes_through(fails):
    model, x, y = plain()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    kind = ValueError if fails == "call" else KeyError

    def passes():
        if fails == "forward":
            nn.Sequential(model.body, Broken())(x)
        if fails == "call":
            F.cross_entropy(model(x, scale=2.0), y, reduction="nonsense")
        Failing.apply(model(x, scale=2.0)).sum().backward()

    with pytest.raises(kind) as raised, recording(model):
        optimizer.step(passes) if fails == "closure" else passes()
    assert raised.value.__context__ is None
    with recording(model) as step:
        F.cross_entropy(model(x, scale=2.0), y).backward()
    assert step.tape().faithful


def test_a_step_that_failed_and_was_tried_again():
    model, x, y = plain()
    with recording(model) as step:
        with pytest.raises(KeyError):
            Failing.apply(model(x, scale=2.0)).sum().backward()
        F.cross_entropy(model(x, scale=2.0), y).backward()
    assert step.tape().faithful or step.tape().reason


FAULTS = [
    (Recorder, "_before"), (Recorder, "_after"), (Recorder, "_outputs"), (Recorder, "_log"), (Recorder, "_backward"),
    (Recorder, "context"), (Recorder, "_patch"), (Recorder, "_enter"), (Recorder, "keep_gradients"), (Recorder, "live"),
    (Numbers, "given"), (Numbers, "made"), (Numbers, "mark_changed"), (Numbers, "updated"), (Numbers, "_enlist"),
    (Numbers, "_leaf"), (Numbers, "_role"), (Numbers, "_find"), (Numbers, "_changed_elsewhere"),
    (Recording, "_begin"), (Recording, "_end"), (Recording, "_close"), (Recording, "_marks"),
    (record, "where"), (record, "states"), (record, "drawn"), (record, "_name"), (record, "mapped"),
    (record, "tensors"),
    (record, "insert_mode"), (numbers, "snapshot"), (numbers, "look"), (numbers, "storage_of"),
    (recordings, "gradients_of"), (recordings, "setup_of"), (recordings, "fingerprint"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault[0].__name__.rpartition('.')[2]}.{fault[1]}")
def test_an_error_of_ours_ends_the_recording_and_nothing_else(fault, monkeypatch):
    def train(record):
        torch.manual_seed(0)
        training = CASES["changes_in_place"].make()
        for _ in range(3):
            if record:
                with recording(training.model, *training.optimizers) as step:
                    training.step()
                    training.step()
            else:
                training.step()
                training.step()
        return state_of(training), step if record else None

    expected, _ = train(record=False)

    def fail(*args, **kwargs):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(*fault, fail)
    got, step = train(record=True)
    assert got == expected
    assert "a fault of ours" in step.recorder.broken
    with pytest.raises(ValueError, match="a fault of ours"):
        step.tape()


def test_modes_of_the_user_stay_where_they_are():
    model, x, y = plain()
    before, within, after = Counting(), Counting(), Counting()
    before.__enter__()
    step = recording(model)
    made = step.__enter__()
    with within:
        loss = F.cross_entropy(model(x, scale=2.0), y)
    before.__exit__(None, None, None)
    after.__enter__()
    loss.backward()
    step.__exit__(None, None, None)
    assert _get_current_function_mode_stack() == [after]
    after.__exit__(None, None, None)
    assert made.tape().faithful
    assert before.calls
    assert within.calls


def test_a_default_device_that_is_left_after_recording_began():
    model, x, y = plain()
    block = torch.device("meta")
    block.__enter__()
    step = recording(model)
    step.__enter__()
    with torch.device("cpu"):
        assert torch.zeros(1).device.type == "cpu"
    assert torch.zeros(1).device.type == "meta"
    block.__exit__(None, None, None)
    assert torch.zeros(1).device.type == "cpu"
    with torch.device("meta"):
        step.__exit__(None, None, None)
        assert torch.zeros(1).device.type == "meta"
    assert torch.zeros(1).device.type == "cpu"
    torch.set_default_device("cpu")
    try:
        with recording(model) as again:
            F.cross_entropy(model(x, scale=2.0), y).backward()
    finally:
        torch.set_default_device(None)
    assert again.tape().faithful


def test_a_model_can_be_copied_and_saved_within_a_recording():
    model, x, y = plain()
    with recording(model) as step:
        loss = F.cross_entropy(model(x, scale=2.0), y)
        other = copy.deepcopy(model)
        torch.save(model, io.BytesIO())
        pickle.dumps(model)
        loss.backward()
    assert step.tape().faithful
    assert not [m for m in other.modules() if m._forward_hooks or m._forward_pre_hooks]


def test_a_patch_that_came_later_is_left_alone():
    model, x, y = plain()
    step = recording(model)
    made = step.__enter__()
    ours = torch.autograd.backward

    def theirs(*args, **kwargs):
        return ours(*args, **kwargs)

    torch.autograd.backward = theirs
    F.cross_entropy(model(x, scale=2.0), y).backward()
    try:
        step.__exit__(None, None, None)
        assert torch.autograd.backward is theirs
        F.cross_entropy(model(x, scale=2.0), y).backward()
    finally:
        torch.autograd.backward = BACKWARD_OF_TORCH
    assert made.tape().faithful
    assert len(made.parts) == 1


def test_replaying_leaves_the_training_alone():
    tape, part = a_tape()
    state = torch.get_rng_state()
    played = [replay(tape) for _ in range(2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert all(fingerprint(p.losses[0]) == fingerprint(part.losses[0]) for p in played)
    assert all(isinstance(r, Ref) for op in tape.ops for r in (op.out,) if op.out is not None)


@pytest.mark.parametrize(
    "values",
    [
        torch.randn(7, 5), torch.randn(40, 9) * 1e-3 + 100, torch.randn(6, 4).softmax(-1), torch.zeros(3, 2),
        torch.tensor([[1.0, math.inf], [0.0, 2.0]]), torch.tensor([[math.nan, 1.0], [2.0, 3.0]]), torch.ones(4) * 1e18,
        torch.randint(0, 9, (5, 3)), torch.tensor([True, False]), torch.randn(5, 4).half(), torch.randn(3).bfloat16(),
        torch.randn(3, 4, dtype=torch.complex64), torch.arange(6.0).view(3, 2), torch.tensor(2.5), torch.randn(9, 1),
        torch.randn(2, 3, 4).double(), torch.empty(0, 3), torch.eye(3).to_sparse(), torch.randn(4, 6).t()[::2],
    ],
    ids=lambda t: f"{t.dtype}{list(t.shape)}",
)  # fmt: skip
def test_figures_are_the_same_at_once_and_later(values):
    found = look(values, columns=True).read()
    if not values.numel() or values.is_sparse:
        assert math.isnan(found.mean)
        return
    later = Pending(_later(values.abs() if values.is_complex() else values, True)).read()
    for field in dataclasses.fields(found):
        ours, theirs = getattr(found, field.name) or 0.0, getattr(later, field.name) or 0.0
        assert ours == pytest.approx(theirs, rel=2e-3, abs=1e-7, nan_ok=True), field.name
