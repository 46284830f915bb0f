"""With and without whyloss the training is the same to the last bit, whatever happens inside whyloss."""

import errno
import hashlib
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from conftest import environment
from training import batch, mlp, observed, stderr_lines, train
from whyloss.journal import Journal, read_run
from whyloss.observe import attach
from whyloss.observe.activations import Sketch
from whyloss.observe.observer import Observer
from whyloss.observe.optimizer import OptimizerWatch

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


class Conv(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2))
        self.drop, self.head = nn.Dropout(0.5), nn.Linear(36, 3)

    def forward(self, x):
        return self.head(self.drop(self.features(x.view(-1, 1, 8, 8)).flatten(1)))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, 2, dropout=0.1, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.lstm(x.view(-1, 8, 8))[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x.view(-1, 8, 8)).mean(1))


class Checkpointed(Recurrent):
    reentrant = False

    def forward(self, x):
        hidden = checkpoint(self.lstm, x.view(-1, 8, 8).requires_grad_(), use_reentrant=self.reentrant)[0]
        return self.head(hidden[:, -1])


class Reentrant(Checkpointed):
    reentrant = True


def step_plainly(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def step_with_closure(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    optimizer.step(closure)


def step_in_bfloat16(model, optimizer, x, y):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()


def step_scaled(model, optimizer, x, y):
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    optimizer.zero_grad()
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()


def step_accumulated(model, optimizer, x, y):
    for part in range(4):
        (F.cross_entropy(model(x[part::4]), y[part::4]) / 4).backward()
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)


def step_and_evaluate(model, optimizer, x, y):
    """The rate depends on an evaluation, so that it has to be the same, too."""
    step_plainly(model, optimizer, x, y)
    model.eval()
    with torch.no_grad():
        optimizer.param_groups[0]["lr"] = 0.01 * F.cross_entropy(model(x), y).item()
    model.train()


LOOPS = {
    "sgd": (lambda: mlp(64, 16, 3), torch.optim.SGD, step_plainly),
    "adam": (lambda: mlp(64, 16, 3), torch.optim.Adam, step_plainly),
    "adamw": (lambda: mlp(64, 16, 3), torch.optim.AdamW, step_plainly),
    "fused": (lambda: mlp(64, 16, 3), lambda p, lr: torch.optim.AdamW(p, lr=lr, fused=True), step_scaled),
    "lbfgs": (lambda: mlp(64, 16, 3, activation=nn.Tanh), torch.optim.LBFGS, step_with_closure),
    "closure": (Conv, torch.optim.SGD, step_with_closure),
    "cnn": (Conv, torch.optim.SGD, step_plainly),
    "lstm": (Recurrent, torch.optim.Adam, step_plainly),
    "transformer": (Transformer, torch.optim.AdamW, step_plainly),
    "evaluation": (Transformer, torch.optim.AdamW, step_and_evaluate),
    "bfloat16": (Conv, torch.optim.SGD, step_in_bfloat16),
    "scaled": (Conv, torch.optim.SGD, step_scaled),
    "accumulated": (Conv, torch.optim.Adam, step_accumulated),
    "checkpointed": (Checkpointed, torch.optim.SGD, step_plainly),
    "reentrant": (Reentrant, torch.optim.SGD, step_plainly),
}


def final(loop, around, steps=25):
    """Every parameter and buffer after some steps, and the state of the random generator."""
    build, optimizer_of, step = LOOPS[loop]
    torch.manual_seed(0)
    with around:
        model = build()
        optimizer = optimizer_of(model.parameters(), lr=0.01)
        for i in range(steps):
            step(model, optimizer, *batch(16, 64, seed=i))
    return [*(v.clone() for v in model.state_dict().values()), torch.get_rng_state()]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("loop", LOOPS)
def test_the_parameters_are_the_same_to_the_last_bit(tmp_path, loop):
    """After 25 steps, of which 21 are observed in full."""
    assert same(final(loop, observed(tmp_path)), final(loop, nullcontext()))


# -- the examples


HASHING = """
import gc, hashlib, runpy, sys
kept = runpy.run_path(sys.argv[1], run_name="__main__")
import torch
found = [o for o in gc.get_objects() if issubclass(type(o), torch.nn.Module)]
tensors = [t for m in found for t in (*m._parameters.values(), *m._buffers.values()) if t is not None]
digests = {hashlib.sha256(t.detach().double().numpy().tobytes()).hexdigest() for t in tensors}
digests.add(hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
print("digest", hashlib.sha256("".join(sorted(digests)).encode()).hexdigest())
"""

KEEPING = """
import torch
kept_alive = []
build = torch.nn.Module.__init__
def keep(self, *args, **kwargs):
    kept_alive.append(self)
    build(self, *args, **kwargs)
torch.nn.Module.__init__ = keep
"""


def run_example(script, folder, watched):
    """Its output, with a digest of all modules that it ever made."""
    from whyloss.live.supervise import SITE

    env = {k: v for k, v in os.environ.items() if not k.startswith("WHYLOSS_")} | {"OMP_NUM_THREADS": "1"}
    if watched:
        env |= {"PYTHONPATH": str(SITE), "WHYLOSS_FOLDER": str(folder)}
    command = [sys.executable, "-c", KEEPING + HASHING, str(script)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_the_examples_do_the_same_when_they_are_observed(tmp_path, script):
    """The same output, the same final parameters, nothing on stderr, and a journal of every update."""
    pytest.importorskip("sklearn")
    watched, plain = (run_example(script, tmp_path / "run", w) for w in (True, False))
    assert watched == plain
    assert "digest" in watched[0]
    run = read_run(tmp_path / "run")
    assert (run.facts.end, run.facts.detached, run.facts.limits) == ("finished", "", ())
    assert run.updates > 100


# -- our own errors


def methods(*kinds):
    """Every method of ours through which a training passes."""
    found = []
    for kind in kinds:
        for name, value in vars(kind).items():
            inner = ("see", "detach", "finish", "seconds", "release", "disarm", "outside", "optimizer", "steps")
            if callable(value) and not name.startswith("__") and name.lstrip("_") not in inner:
                found.append((kind, name))
    return found


def broken(message="this is broken"):
    def fail(*args, **kwargs):
        raise RuntimeError(message)

    return fail


@pytest.mark.parametrize(
    ("kind", "name"),
    methods(Observer, OptimizerWatch, Sketch, Journal),
    ids=lambda v: v if isinstance(v, str) else v.__name__,
)
@pytest.mark.parametrize("loop", ["scaled", "closure"])
def test_an_error_of_ours_ends_the_observation_and_not_the_training(tmp_path, monkeypatch, capsys, kind, name, loop):
    """Whatever method fails: at most one warning, no hook left, and the same parameters."""
    if name in ("_let_go", "_note_detached", "close"):
        pytest.skip("part of ending the observation: tested below")
    monkeypatch.setattr(kind, name, broken())
    observation = attach(tmp_path / "run")
    result = final(loop, nullcontext(), 3)
    failed = observation._observer.failure
    observation.close()
    monkeypatch.undo()
    said = stderr_lines(capsys)
    assert same(result, final(loop, nullcontext(), 3))
    assert len(said) == (1 if failed or observation._observer.failure else 0)
    assert observation._patches._undo == []
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not hasattr(torch.autograd.backward, "__wrapped__")


@pytest.mark.parametrize("name", ["_let_go", "_note_detached"])
def test_an_error_on_the_way_out_is_swallowed(tmp_path, monkeypatch, name):
    """Ending the observation must not fail either."""
    monkeypatch.setattr(Observer, name, broken())
    monkeypatch.setattr(OptimizerWatch, "before_step", broken())
    observation = attach(tmp_path / "run")
    result = final("cnn", nullcontext(), 3)
    observation.close()
    monkeypatch.undo()
    assert same(result, final("cnn", nullcontext(), 3))
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_an_error_late_in_the_training_removes_every_hook(tmp_path, monkeypatch, capsys):
    """At an observed update, while hooks are on the modules and torch goes through its list of hooks."""
    observation = attach(tmp_path / "run")
    model = mlp(4, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 5)
    monkeypatch.setattr(OptimizerWatch, "after_step", broken())
    train(model, optimizer, 3)
    assert stderr_lines(capsys) == ["whyloss: stopped observing (RuntimeError: this is broken); the training goes on"]
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == [0] * 4
    assert observation._patches._undo == []
    observation.close()
    run = read_run(observation.folder)
    assert (run.updates, run.facts.detached) == (5, "RuntimeError: this is broken")


def test_a_full_disk_ends_the_observation_and_not_the_training(tmp_path, monkeypatch, capsys):
    """One warning that says why."""

    def full(*args, **kwargs):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    observation = attach(tmp_path / "run")
    model = mlp(4, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 3)
    monkeypatch.setattr(Journal, "row", full)
    monkeypatch.setattr(Journal, "event", full)
    losses = train(model, optimizer, 3)
    observation.close()
    where = f"can't write to {tmp_path / 'run'}: No space left on device"
    assert stderr_lines(capsys) == [f"whyloss: stopped observing ({where}); the training goes on"]
    assert len(losses) == 3
    assert not observation.active


def test_a_folder_that_cannot_be_made_ends_the_observation_at_once(tmp_path, capsys):
    """A file stands where the folder should be."""
    (tmp_path / "file").write_text("")
    observation = attach(tmp_path / "file" / "run")
    model = mlp(4, 8, 3)
    train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)
    (said,) = stderr_lines(capsys)
    assert said.startswith("whyloss: stopped observing (can't write in")
    assert not observation.active
    assert observation._patches._undo == []


def test_stderr_that_is_closed_is_no_error(tmp_path, monkeypatch):
    """The warning is lost; the training is not."""
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.setattr(OptimizerWatch, "before_step", broken())
    observation = attach(tmp_path / "run")
    model = mlp(4, 8, 3)
    assert len(train(model, torch.optim.SGD(model.parameters(), lr=0.1), 3)) == 3
    observation.close()


FORK = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from training import mlp, observed, train

with observed(Path(sys.argv[2])) as seen:
    model = mlp(4, 8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 2)
    child = os.fork()
    train(model, optimizer, 1 if child else 5)
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print(seen.trace.updates)
"""


def test_a_child_process_does_not_write_into_its_parents_journal(tmp_path):
    """After a fork the child trains on its own, unobserved. One thread: a fork of an OpenMP pool waits for ever."""
    command = [sys.executable, "-c", FORK, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment(), check=True)
    assert done.stdout == "3\n"


def test_a_digest_tells_trainings_apart():
    """The comparison of this file notices a change in the last bit."""
    a = final("sgd", nullcontext(), 2)
    b = [t.clone() for t in a]
    b[0].view(torch.int32).view(-1)[0] ^= 1
    assert same(a, a)
    assert not same(a, b)
    assert hashlib.sha256(a[0].numpy().tobytes()).digest() != hashlib.sha256(b[0].numpy().tobytes()).digest()
