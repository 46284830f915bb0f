"""The first non-finite value of a live training is located when it happens, at steps that nobody chose to record."""

import gc
import math
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam

from conftest import run_whyloss
from training import batch, line_of, mlp, observed
from whyloss.observe import TapeOptions
from whyloss.observe.entries import Entries
from whyloss.tape.bundle import read_bundle
from whyloss.tape.capture import Capture
from whyloss.tape.compare import reproduce
from whyloss.tape.locate import locate

LATE = 40  # an update that is not recorded
MARK = 50.0
HERE = __file__


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """The search for models goes through all objects: those of the libraries are set aside, which halves the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


class Net(nn.Module):
    """Batch norm, dropout, and an op whose forward or backward can fail."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.register_buffer("scale", torch.ones(8))
        self.fault, self.marked = "", False  # only examples with a mark are faulty

    def forward(self, x):
        hidden = F.dropout(self.norm(self.inner(x)), 0.3, self.training) * self.scale
        fault = self.fault if not self.marked or x[0, 0] > MARK else ""
        if fault == "forward":
            hidden = torch.log(hidden - hidden)  # a logarithm of nothing
        if fault == "backward":
            hidden = hidden + torch.sqrt(hidden - hidden)  # a root at nothing
        return self.head(hidden)


def plainly(model, x, y):
    F.cross_entropy(model(x), y).backward()


def run(steps, spoil, *, step=plainly, model=None, optimizer=None, at=LATE, after=3, data=None):
    """Trains; `spoil(model, x, y, optimizer)` before the update `at`, and gives that update's batch."""
    model = model or Net()
    optimizer = optimizer(model.parameters()) if optimizer else SGD(model.parameters(), lr=0.01)
    for i in range(steps):
        x, y = data(i) if data else batch(seed=i)
        if i == at:
            x, y = spoil(model, x, y, optimizer) or (x, y)
        optimizer.zero_grad()
        step(model, x, y)
        optimizer.step()
    return model


def found(tmp_path, spoil, at=LATE, *, exact=True, **options):
    """The one location of a training that is spoilt at this update; its bundle gives the same one."""
    with observed(tmp_path) as seen:
        run(at + 3, spoil, at=at, **options)
    return checked(seen, at, exact=exact)


def checked(seen, at, *, trace=0, exact=True):
    (located,) = seen.run.located
    assert (located.trace, located.step) == (trace, at)
    if exact:
        assert located.location.doubts == ()
        replays_alike(seen, located)
    return located.location


def replays_alike(seen, located):
    folder = seen.observation.folder / located.bundle
    assert located.bundle.startswith(f"bundle-step{located.step}")
    assert reproduce(folder).difference == ""
    again = locate(read_bundle(folder).tape)
    if located.location.phase != "update":
        assert (again.phase, again.op, again.text) == tuple(
            getattr(located.location, name) for name in ("phase", "op", "text")
        )


def fault(kind):
    def spoil(model, x, y, optimizer):
        model.fault = kind

    return spoil


# -- each phase, at a recorded step and at one that is not


@pytest.mark.parametrize("at", [0, 1, LATE])
def test_a_forward_op(tmp_path, at):
    where = found(tmp_path, fault("forward"), at)
    assert (where.phase, where.op) == ("forward", "torch.log")
    assert where.place.line == line_of("# a logarithm" + " of nothing", HERE)


@pytest.mark.parametrize("at", [0, LATE])
def test_a_backward_op(tmp_path, at):
    where = found(tmp_path, fault("backward"), at)
    assert (where.phase, where.op, where.aten) == ("backward", "torch.sqrt", "SqrtBackward0")
    assert where.place.line == line_of("# a root" + " at nothing", HERE)


@pytest.mark.parametrize("at", [0, LATE])
@pytest.mark.parametrize("what", ["input", "target", "buffer"])
def test_a_leaf(tmp_path, at, what):
    def spoil(model, x, y, optimizer):
        if what == "buffer":
            model.scale[2] = math.nan
        bad = x if what == "input" else y
        return (x, y) if what == "buffer" else tuple(_nan(t) if t is bad else t for t in (x, y))

    def step(model, x, y):
        F.mse_loss(model(x), y).backward()

    def data(i):
        return batch(seed=i)[0], torch.randn(16, 3, generator=torch.Generator().manual_seed(i))

    where = found(tmp_path, spoil, at, step=step, data=data)
    assert (where.phase, where.leaf.role) == ("leaf", what)
    assert where.leaf.values.nan == 1


def _nan(t):
    t = t.clone()
    t[1, 1] = math.nan
    return t


def test_a_parameter_before_the_first_update(tmp_path):
    def spoil(model, x, y, optimizer):
        with torch.no_grad():
            model.head.weight[0, 0] = math.inf

    where = found(tmp_path, spoil, 0)
    assert (where.phase, where.leaf.role, where.leaf.name) == ("leaf", "parameter", "head.weight")


def test_an_update_by_a_rate_that_is_nan(tmp_path):
    def spoil(model, x, y, optimizer):
        optimizer.param_groups[0]["lr"] = math.nan

    with observed(tmp_path) as seen:
        run(LATE + 3, spoil)
    where = checked(seen, LATE + 1)
    assert where.phase == "update"
    assert where.text.startswith(f"The update of step {LATE} left nan")
    assert "lr of its group 0 is nan" in where.text


def test_an_update_whose_eps_is_nothing_in_half_precision(tmp_path):
    """Of a parameter without a gradient: 0 / 0."""
    with observed(tmp_path) as seen:
        torch.manual_seed(0)
        model = mlp(4, 8, 3).to(torch.float16)
        optimizer = Adam(model.parameters(), lr=1e-3)
        x, y = batch()
        for _ in range(3):
            optimizer.zero_grad()
            (F.cross_entropy(model(x.half() * 0), y) + 0 * model[0].weight.sum()).backward()
            optimizer.step()
    where = checked(seen, 1, exact=False)
    assert where.phase == "update"
    assert "eps=1e-08 is 0 in float16" in where.text


def test_gradients_whose_norm_overflows(tmp_path):
    def step(model, x, y):
        scale = 1e37 if model.fault else 1.0
        (scale * model(x)).sum().backward()

    where = found(tmp_path, fault("large"), step=step, optimizer=lambda p: SGD(p, lr=0.0))
    assert where.phase == "overflow"


# -- ways to train


def clipped(model, x, y):
    plainly(model, x, y)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def accumulated(model, x, y):
    """The third micro-batch is the bad one."""
    model.marked = True
    x[2, 0] = 2 * MARK
    for part in range(4):
        (F.cross_entropy(model(x[part::4]), y[part::4]) / 4).backward()


def in_bfloat16(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = F.cross_entropy(model(x), y)
    loss.backward()


class WithLoss(Net):
    def forward(self, x, y):
        out = super().forward(x)
        return {"loss": F.cross_entropy(out, y), "logits": out}


def inside(model, x, y):
    model(x, y=y)["loss"].backward()


def of_hidden_line(model, x, y):
    """Called part by part: what one gives the other is not held."""
    hidden = model.inner(x)
    model.head(torch.log(hidden - hidden) if model.fault else hidden).sum().backward()


STEPS = {"clipped": clipped, "accumulated": accumulated, "bfloat16": in_bfloat16}


@pytest.mark.parametrize("step", STEPS)
def test_a_forward_op_in_other_loops(tmp_path, step):
    where = found(tmp_path, fault("forward"), step=STEPS[step])
    assert (where.phase, where.op) == ("forward", "torch.log")


@pytest.mark.parametrize("step", STEPS)
def test_a_backward_op_in_other_loops(tmp_path, step):
    where = found(tmp_path, fault("backward"), step=STEPS[step])
    assert (where.phase, where.op) == ("backward", "torch.sqrt")


def test_a_loss_inside_the_model(tmp_path):
    where = found(tmp_path, fault("forward"), step=inside, model=WithLoss())
    assert (where.phase, where.op) == ("forward", "torch.log")


def test_parts_that_are_called_in_turn(tmp_path):
    where = found(tmp_path, fault("forward"), step=of_hidden_line)
    assert (where.phase, where.op) == ("forward", "torch.log")
    assert where.place.source.startswith("model.head(torch.log")


def test_a_loss_written_by_hand(tmp_path):
    def step(model, x, y):
        probability = model(x).softmax(1)
        if model.fault:
            probability = probability * 0
        picked = probability[torch.arange(16), y]
        loss = -torch.log(picked).mean()  # written by hand
        loss.backward()

    where = found(tmp_path, fault("by hand"), step=step)
    assert (where.phase, where.op) == ("forward", "torch.log")
    assert where.place.line == line_of("# written by" + " hand", HERE)


@pytest.mark.parametrize("kind", [SGD, torch.optim.LBFGS])
@pytest.mark.parametrize("at", [1, LATE])
def test_a_closure(tmp_path, kind, at):
    with observed(tmp_path) as seen:
        model = Net()
        optimizer = kind(model.parameters(), lr=0.01)
        for i in range(at + 2):
            x, y = batch(seed=i)
            model.fault = "forward" if i == at else ""

            def closure(x=x, y=y):
                optimizer.zero_grad()
                loss = F.cross_entropy(model(x), y)
                loss.backward()
                return loss

            optimizer.step(closure)
    where = checked(seen, at)
    assert (where.phase, where.op) == ("forward", "torch.log")


@pytest.mark.parametrize("at", [2, LATE])
def test_the_second_of_two_optimizers(tmp_path, at):
    """A generator, whose forward pass was before the critic's update."""
    with observed(tmp_path) as seen:
        torch.manual_seed(0)
        made, judge = mlp(2, 8, 4), mlp(4, 8, 1)
        optimizers = SGD(judge.parameters(), lr=0.01), SGD(made.parameters(), lr=0.01)
        x, _ = batch()
        for i in range(at + 2):
            fake = made(torch.randn(16, 2))
            optimizers[0].zero_grad()
            (judge(x).square() + judge(fake.detach()).exp()).mean().backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            score = judge(fake)
            (torch.log(score - score) if i == at else score).mean().backward()
            optimizers[1].step()
    where = checked(seen, at, trace=1)
    assert (where.phase, where.op) == ("forward", "torch.log")


def test_a_compiled_model_is_run_uncompiled(tmp_path):
    class Faulty(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return torch.log(x.abs().mean() * (1 + self.layer(x).square()))

    with observed(tmp_path) as seen:
        model = Faulty()
        optimizer = SGD(model.parameters(), lr=0.01)
        compiled = torch.compile(model, backend="eager")
        for i in range(8):
            x, _ = batch(seed=i)
            optimizer.zero_grad()
            compiled(0 * x if i == 5 else x).sum().backward()
            optimizer.step()
    where = checked(seen, 5)
    assert (where.phase, where.op) == ("forward", "torch.log")


@pytest.mark.filterwarnings("ignore:The .grad attribute")
@pytest.mark.parametrize("side", ["model-side", "objective-side"])
def test_with_a_compiled_loss_the_side_is_known(tmp_path, side):
    """Of a compiled function nothing is recorded."""
    loss = torch.compile(lambda out, y, fault: F.cross_entropy(out / fault, y), backend="eager")

    def step(model, x, y):
        loss(model(x), y, torch.tensor(0.0 if model.fault == "loss" else 1.0)).backward()

    kind = "forward" if side == "model-side" else "loss"
    where = found(tmp_path, fault(kind), at=5, step=step, exact=False)
    assert where.phase == side


def test_an_optimizer_that_steps_within_backward_says_so(tmp_path):
    with observed(tmp_path) as seen:
        model = mlp(4, 3)
        own = {p: SGD([p], lr=0.1) for p in model.parameters()}
        for p in own:
            p.register_post_accumulate_grad_hook(lambda p: own[p].step())
        x, y = batch()
        for i in range(6):
            F.cross_entropy(model(x * (math.nan if i == 4 else 1.0)), y).backward()
    (located,) = seen.run.located
    assert located.step == 4
    assert "within backward" in located.location.doubts[0]


def test_a_model_inside_torch_func_says_so(tmp_path):
    with observed(tmp_path) as seen:
        model = mlp(4, 3)
        optimizer = SGD(model.parameters(), lr=0.1)
        for i in range(6):
            for p in model.parameters():
                p.grad = torch.full_like(p, math.nan if i == 4 else 0.0)
            optimizer.step()
    assert [(x.step, x.location.phase) for x in seen.run.located] == [(4, "none")]


# -- loss scalers


def scaled(model, optimizer, overflow, steps=8):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for i in range(steps):
        x, y = batch(seed=i)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss * overflow(i)).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_is_no_alarm(tmp_path, fused):
    """Gradients overflow under a scale that is too large: the scaler sees to that."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaled(model, optimizer, lambda i: 1e36 if i in (1, 5) else 1.0)
    assert seen.run.located == ()


@pytest.mark.parametrize("fused", [False, True])
def test_a_loss_that_is_nan_is_an_alarm_though_the_scaler_skips_the_step(tmp_path, fused):
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=fused)
        scaled(model, optimizer, lambda i: math.nan if i >= 5 else 1.0)
    assert [x.step for x in seen.run.located] == [5]


# -- programs that look at their loss themselves


@pytest.mark.parametrize("at", [1, LATE])
@pytest.mark.parametrize("when", ["before backward", "before update"])
def test_a_program_that_stops_at_a_bad_loss(tmp_path, at, when):
    with observed(tmp_path) as seen:
        model = Net()
        optimizer = SGD(model.parameters(), lr=0.01)
        for i in range(at + 3):
            x, y = batch(seed=i)
            model.fault = "forward" if i == at else ""
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if when == "before backward" and torch.isnan(loss):
                break
            loss.backward()
            if when == "before update" and not math.isfinite(loss.item()):
                break
            optimizer.step()
    where = checked(seen, at)
    assert (where.phase, where.op) == ("forward", "torch.log")


def test_a_program_that_raises_where_gradients_are_not_finite(tmp_path):
    with observed(tmp_path) as seen:
        model = Net()
        optimizer = SGD(model.parameters(), lr=0.01)

        def train():
            for i in range(12):
                x, y = batch(seed=i)
                model.fault = "backward" if i == 8 else ""
                optimizer.zero_grad()
                plainly(model, x, y)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
                optimizer.step()

        with pytest.raises(RuntimeError, match="non-finite"):
            train()
    where = checked(seen, 8)
    assert (where.phase, where.op) == ("backward", "torch.sqrt")


def test_a_program_that_ends_well_has_no_location(tmp_path):
    with observed(tmp_path) as seen:
        model = run(6, lambda *_: None, at=-1)
        F.cross_entropy(model(batch()[0]), batch()[1]).item()
    assert seen.run.located == ()


# -- the training is not disturbed


@pytest.mark.parametrize("kind", ["forward", "backward"])
@pytest.mark.parametrize("step", [plainly, accumulated, in_bfloat16])
def test_running_a_step_once_more_changes_nothing(tmp_path, kind, step):
    """Parameters, buffers and generators after it are those of a training that nobody watches."""

    def final(around):
        with around:
            model = run(LATE + 3, fault(kind), step=step)
        return [*(t.clone() for t in model.state_dict().values()), torch.get_rng_state()]

    watched, alone = final(observed(tmp_path)), final(nullcontext())
    assert all(torch.equal(a, b) or bool((a.isnan() == b.isnan()).all()) for a, b in zip(watched, alone, strict=True))
    assert torch.equal(watched[-1], alone[-1])


def test_a_model_that_raises_when_it_runs_once_more_is_a_doubt(tmp_path):
    class Once(Net):
        def forward(self, x):
            if self.fault == "gone":
                raise RuntimeError("only once")
            out = super().forward(x)
            if self.fault == "forward":
                self.fault = "gone"
            return out

    with observed(tmp_path) as seen:
        model = Once()
        run(6, fault("forward"), at=5, model=model)
    (located,) = seen.run.located
    assert located.location.doubts == ("the step could not be run again: only once",)
    assert located.bundle == ""


def test_the_users_exception_in_forward_passes_through_and_the_retry_is_located(tmp_path):
    class Flaky(Net):
        def forward(self, x):
            if self.fault == "raise":
                raise KeyError("mine")
            return super().forward(x)

    with observed(tmp_path) as seen:
        model = Flaky()
        optimizer = SGD(model.parameters(), lr=0.01)
        for i in range(9):
            x, y = batch(seed=i)
            optimizer.zero_grad()
            if i > 5:
                model.fault = "raise"
                with pytest.raises(KeyError, match="mine"):
                    model(x)
            model.fault = "forward" if i == 8 else ""
            plainly(model, x, y)
            optimizer.step()
    where = checked(seen, 8)
    assert (where.phase, where.op) == ("forward", "torch.log")


def test_without_memory_for_tapes_nothing_is_captured(tmp_path):
    """And nothing is read before an update."""
    with observed(tmp_path, tapes=TapeOptions(most_bytes=0)) as seen:
        run(8, fault("forward"), at=5)
    assert seen.run.located == ()
    assert seen.trace.updates == 8


def test_a_capture_bounds_what_it_holds():
    model = nn.Linear(2, 2)
    capture = Capture({}, {id(model): ""})
    for _ in range(200):
        x = torch.ones(1, 2)
        capture.call_begins(model, (x,), {}, None, None)
        capture.call_ends(model(x))
    capture.pause()
    assert "forward passes" in capture.trouble
    with pytest.raises(ValueError, match="forward passes"):
        capture.record([], 1e9)
    capture.release()
    assert torch._C._len_torch_function_stack() == 0


def test_only_outermost_passes_are_entries():
    """A module that is called by another one is none; one that is called again from outside is."""
    told = []
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    entries = Entries(
        lambda what, *args: what(*args),
        lambda module, args, kwargs: told.append(("begins", module)),
        lambda module, output: told.append(("ends", module)),
    )
    entries.watch(model.modules())
    model(torch.ones(1, 2))
    model[0](torch.ones(1, 2))
    with torch.no_grad():
        model(torch.ones(1, 2))
    assert told == [("begins", model), ("ends", model), ("begins", model[0]), ("ends", model[0])]
    entries.release()
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


# -- zero code

SCRIPT = """
import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(50):
    x, y = torch.randn(16, 4), torch.randint(0, 3, (16,))
    optimizer.zero_grad()
    out = model(x)
    loss = F.cross_entropy(out, y)
    if step == 45:
        loss = loss + {fault}
    {check}
    loss.backward()
    optimizer.step()
"""
PROGRAMS = {
    "forward": ("torch.log(out - out).mean()  # bad", "pass", "torch.log gives"),
    "stops": ("torch.log(out - out).mean()  # bad", "assert torch.isfinite(loss)", "torch.log gives"),
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_report_names_op_and_line_and_the_bundle_replays(tmp_path, program):
    bad, check, said = PROGRAMS[program]
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(fault=bad, check=check))
    ran = run_whyloss("run", "--out", "run", script, cwd=tmp_path)
    assert said in ran.stdout + ran.stderr
    assert f"train.py:{line_of('# bad', script)}" in (ran.stdout + ran.stderr)
    if program == "stops":
        return
    replayed = run_whyloss("replay", "run/bundle-step45", cwd=tmp_path)
    assert replayed.code == 0, replayed.stdout + replayed.stderr
    assert said in replayed.stdout
