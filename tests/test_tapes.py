"""Steps of a live training that are recorded: which ones, whether they replay bit for bit, and what is left after."""

import contextlib
import copy
import gc
import io
import pickle
import weakref
from dataclasses import dataclass, field

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import _SingleLevelFunction
from torch.optim import SGD, Adam
from torch.utils.checkpoint import checkpoint

import whyloss
from training import batch, mlp, observed, stderr_lines, train
from whyloss.observe import TapeOptions, attach, tapes
from whyloss.observe.entries import Entries
from whyloss.observe.tapes import RECORDED, Tapes
from whyloss.tape.capture import Capture
from whyloss.tape.record import Recorder

CHOSEN = sorted(RECORDED)
STEPS = 32


@pytest.fixture(scope="module", autouse=True)
def few_objects():
    """The search for models goes through all objects: those of the libraries are set aside, which halves the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def net():
    torch.manual_seed(0)
    return mlp(4, 8, 3)


def stack_depth():
    return torch._C._len_torch_function_stack()


def told(run, trace=0):
    """Step → why its tape is not faithful, "" where it is."""
    return {g.step: g.reason for g in run.traces[trace].graphs}


FAITHFUL = dict.fromkeys(CHOSEN, "")


# -- loops: each trains for `steps` updates


def plain(steps):
    model = net()
    train(model, SGD(model.parameters(), lr=0.1), steps)


def accumulated(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        for part in range(4):
            (F.cross_entropy(model(x[part::4]), y[part::4]) / 4).backward()
        optimizer.step()


def two_losses(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        (0.01 * out.square().mean()).backward()
        optimizer.step()


def with_closure(kind, **options):
    def loop(steps):
        model = net()
        optimizer = kind(model.parameters(), lr=0.1, **options)
        x, y = batch()

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(steps):
            optimizer.step(closure)

    return loop


def cleared_after(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def cleared_in_between(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        optimizer.step()


def cleared_by_hand(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        for p in model.parameters():
            p.grad = None
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def a_pass_thrown_away(steps):
    """A backward pass whose gradients are cleared is no part of the update."""
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(2 * x), y).backward()
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


def clipped(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()


def scaled(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.inner, self.block, self.head = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Tanh()), nn.Linear(8, 3)
        self.reentrant = reentrant

    def forward(self, x):
        return self.head(checkpoint(self.block, self.inner(x), use_reentrant=self.reentrant))


def checkpointed(reentrant):
    def loop(steps):
        model = Checkpointed(reentrant)
        train(model, SGD(model.parameters(), lr=0.1), steps)

    return loop


def recurrent(steps):
    model, head = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 3)
    optimizer = Adam([*model.parameters(), *head.parameters()], lr=0.01)
    x, y = batch()
    state = None
    for _ in range(steps):
        optimizer.zero_grad()
        out, state = model(x[:, None], state)
        state = tuple(s.detach() for s in state)
        F.cross_entropy(head(out[:, -1]), y).backward()
        optimizer.step()


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(4, 8), nn.Linear(8, 3)


def submodules_called(steps):
    model = Parts()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model.head(torch.tanh(model.encoder(x))), y).backward()
        optimizer.step()


def submodules_called_backbone_in_eval(steps):
    model = Parts()
    model.encoder.eval()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model.head(torch.tanh(model.encoder(x))), y).backward()
        optimizer.step()


def several_models(steps):
    encoder, head = nn.Linear(4, 8), nn.Linear(8, 3)
    optimizer = SGD([*encoder.parameters(), *head.parameters()], lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(head(encoder(x).relu()), y).backward()
        optimizer.step()


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = [nn.Linear(4, 4) for _ in range(2)]
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x).tanh()
        return self.head(x)


def plain_list(steps):
    model = Listed()
    optimizer = SGD([*model.parameters(), *(p for b in model.blocks for p in b.parameters())], lr=0.1)
    train(model, optimizer, steps)


def called_twice(steps):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        optimizer.zero_grad()
        (F.cross_entropy(model(x), y) + F.mse_loss(model(-x), model(2 * x))).backward()
        optimizer.step()


def evaluated(steps):
    """Without gradients, in eval mode, and in eval mode with gradients on by oversight."""
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    optimizer = SGD(model.parameters(), lr=0.1)
    x, y = batch()
    for _ in range(steps):
        model.train()
        train(model, optimizer, 1)
        with torch.no_grad():
            model(x)
        model.eval()
        F.cross_entropy(model(x), y).item()
        with torch.no_grad():
            F.cross_entropy(model(x), y).item()


def built_after(steps):
    """The optimizer is there before the rest of the model is."""
    first = nn.Linear(4, 8)
    optimizer = SGD(first.parameters(), lr=0.1)
    model = nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))
    optimizer.add_param_group({"params": list(model[2].parameters())})
    train(model, optimizer, steps)


def within_backward(steps):
    """One optimizer a parameter; each steps as soon as its gradient is there."""
    model = net()
    own = {p: SGD([p], lr=0.1) for p in model.parameters()}

    def update(p):
        own[p].step()
        own[p].zero_grad()

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(update)
    x, y = batch()
    for _ in range(steps):
        F.cross_entropy(model(x), y).backward()


LOOPS = {
    "plain": plain,
    "accumulated": accumulated,
    "two losses": two_losses,
    "lbfgs": with_closure(torch.optim.LBFGS, max_iter=3),
    "closure": with_closure(SGD),
    "cleared after": cleared_after,
    "cleared in between": cleared_in_between,
    "cleared by hand": cleared_by_hand,
    "a pass thrown away": a_pass_thrown_away,
    "clipped": clipped,
    "scaled": scaled,
    "checkpointed": checkpointed(False),
    "checkpointed reentrant": checkpointed(True),
    "recurrent": recurrent,
    "submodules called": submodules_called,
    "submodules called, one in eval mode": submodules_called_backbone_in_eval,
    "several models": several_models,
    "plain list": plain_list,
    "called twice": called_twice,
    "evaluated": evaluated,
    "built after": built_after,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_chosen_steps_are_recorded_and_replay_bit_for_bit(tmp_path, loop):
    with observed(tmp_path) as seen:
        LOOPS[loop](STEPS)
    assert told(seen.run) == FAITHFUL
    assert seen.trace.updates == STEPS
    assert seen.run.facts.limits == ()
    assert stack_depth() == 0


def test_each_optimizer_within_backward_has_its_tapes(tmp_path):
    with observed(tmp_path) as seen:
        within_backward(STEPS)
    assert [told(seen.run, i) for i in range(4)] == [FAITHFUL] * 4


def adversarial(steps, critics=1):
    torch.manual_seed(0)
    made, judge = mlp(2, 8, 4), mlp(4, 8, 1)
    optimizers = SGD(judge.parameters(), lr=0.01), SGD(made.parameters(), lr=0.01)
    x, _ = batch()
    ones, zeros = torch.ones(16, 1), torch.zeros(16, 1)
    loss = F.binary_cross_entropy_with_logits
    for _ in range(steps):
        for _ in range(critics):
            fake = made(torch.randn(16, 2))
            optimizers[0].zero_grad()
            (loss(judge(x), ones) + loss(judge(fake.detach()), zeros)).backward()
            optimizers[0].step()
        optimizers[1].zero_grad()
        loss(judge(fake), ones).backward()
        optimizers[1].step()


@pytest.mark.parametrize("critics", [1, 5])
def test_both_optimizers_of_adversarial_networks_have_tapes(tmp_path, critics):
    """That of the generator holds its own forward pass, though the critic was updated in between."""
    with observed(tmp_path) as seen:
        adversarial(STEPS, critics)
    assert [told(seen.run, i) for i in range(2)] == [FAITHFUL, FAITHFUL]
    for graph in seen.run.traces[1].graphs:
        linear = [op for op in graph.ops if op.kind == "linear"]
        assert len(linear) == 4
    assert seen.run.facts.limits == ()


def test_a_second_training_has_its_own_tapes_and_the_first_is_gone(tmp_path):
    with observed(tmp_path) as seen:
        for _ in range(2):
            model = net()
            x, y = batch()
            train(model, SGD(model.parameters(), lr=0.1), 5, (x, y))
            held = [weakref.ref(model), weakref.ref(model[0].weight), weakref.ref(x)]
            del model, x, y
            gc.collect()
            assert [h() for h in held] == [None] * 3
    assert [told(seen.run, i) for i in range(2)] == [{0: "", 1: "", 2: ""}] * 2


# -- what can't be recorded, and what is not


def test_a_model_inside_torch_func_is_not_recorded_and_disturbs_nothing(tmp_path):
    """The gradients come from torch.func: no backward call is made, and there is nothing to record."""
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        x, y = batch()

        def objective(parameters):
            return F.cross_entropy(torch.func.functional_call(model, parameters, (x,)), y)

        for _ in range(4):
            for name, g in torch.func.grad(objective)(dict(model.named_parameters())).items():
                model.get_parameter(name).grad = g.detach()
            optimizer.step()
        assert stack_depth() == 0
    assert [t.graphs for t in seen.run.traces] == [()]


def test_a_loss_with_torch_func_in_it_says_so(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        x, _ = batch()
        for _ in range(4):
            optimizer.zero_grad()
            torch.vmap(lambda row: row.square().sum())(model(x)).mean().backward()
            optimizer.step()
    assert len(told(seen.run)) == 3
    assert all("torch.func" in reason for reason in told(seen.run).values())


def test_steps_without_a_module_are_recorded_from_the_end_of_the_one_before(tmp_path):
    """The first has none before it. What is evaluated in between is no part of a step."""
    with observed(tmp_path) as seen:
        w = torch.zeros(4, 3, requires_grad=True)
        optimizer = SGD([w], lr=0.1)
        x, y = batch()
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(x @ w, y).backward()
            optimizer.step()
            with torch.no_grad():
                F.cross_entropy(x @ w, y)
    assert told(seen.run) == {1: "", 2: ""}
    assert seen.run.facts.limits == ()
    graph = seen.run.traces[0].graphs[0]
    assert [op.name.rpartition(".")[2] for op in graph.ops] == ["matmul", "cross_entropy", "backward"]


def test_forward_passes_without_an_update_hold_nothing_and_leave_no_mode(tmp_path):
    with observed(tmp_path):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 5)
        batches = [torch.randn(16, 4) for _ in range(300)]
        held = [weakref.ref(b) for b in batches]
        while batches:
            F.cross_entropy(model(batches.pop()), batch()[1])
        gc.collect()
        assert sum(h() is not None for h in held) <= 128
        assert stack_depth() == 0
        train(model, optimizer, 1)


def test_forward_passes_before_the_first_update_end_its_recording(tmp_path):
    """A mode that waits for a backward pass must not wait for ever; the next steps are recorded."""
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        for _ in range(1200):
            model(torch.ones(1, 4))
        assert stack_depth() == 0
        train(model, optimizer, 3)
    assert told(seen.run) == {1: "", 2: ""}
    assert ["forward passes" in limit for limit in seen.run.facts.limits] == [True]


def test_hundreds_of_forward_passes_an_update_are_bounded(tmp_path):
    """As in reinforcement learning: an episode of single steps, one loss of all of them. Few enough are recorded; when
    one fails later, more than can be held, it is said so."""
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.01)
        for step in range(5):
            chosen = [F.log_softmax(model(torch.ones(1, 4)), 1)[0, 0] for _ in range(140)]
            optimizer.zero_grad()
            ((float("nan") if step == 4 else 1.0) * torch.stack(chosen).mean()).backward()
            optimizer.step()
        assert stack_depth() == 0
    assert told(seen.run) == {0: "", 1: "", 2: ""}
    (located,) = seen.run.located
    assert (located.step, located.location.phase) == (4, "none")
    assert "forward passes" in located.location.doubts[0]


# -- compiled


def test_a_compiled_module_is_recorded(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        train(torch.compile(model, backend="eager"), SGD(model.parameters(), lr=0.1), STEPS)
    assert told(seen.run) == FAITHFUL


def test_a_module_compiled_after_its_optimizer_is_recorded(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        train(torch.compile(model, backend="eager"), optimizer, STEPS)
    assert told(seen.run) == FAITHFUL


def test_a_module_compiled_in_place_after_its_optimizer_is_recorded_from_the_second_step(tmp_path):
    """Only when a backward pass has been made is it known that it is called compiled."""
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        model.compile(backend="eager")
        train(model, optimizer, STEPS)
    assert told(seen.run) == {1: "", 2: "", 30: ""}


def test_a_module_compiled_in_place_is_recorded(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        model.compile(backend="eager")
        train(model, SGD(model.parameters(), lr=0.1), STEPS)
    assert told(seen.run) == FAITHFUL


@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_a_compiled_loss_is_a_limit(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        loss = torch.compile(lambda out, y: F.cross_entropy(out, y), backend="eager")
        train(model, SGD(model.parameters(), lr=0.1), 5, loss=loss)
    assert told(seen.run) == {}
    assert "compiled function" in seen.run.facts.limits[0]


# -- on demand


def test_the_next_step_is_recorded_when_it_is_asked_for(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 7)
        seen.observation.record_next()
        train(model, optimizer, 3)
    assert told(seen.run) == {0: "", 1: "", 2: "", 7: ""}


def test_the_next_step_is_recorded_on_demand_of_watch(tmp_path):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1)
    with whyloss.watch(model, optimizer, out=tmp_path / "run", quiet=True) as run:
        train(model, optimizer, 5)
        run.record_next()
        train(model, optimizer, 5)
    assert told(whyloss.read_run(run.folder)) == {0: "", 1: "", 2: "", 5: ""}


@pytest.mark.parametrize("redact", [False, True])
def test_steps_that_are_asked_for_go_to_disk(tmp_path, redact):
    from whyloss.tape.bundle import read_bundle

    with observed(tmp_path, tapes=TapeOptions(bundles=frozenset((1, 5)), redact=redact)) as seen:
        plain(8)
    assert told(seen.run) == {0: "", 1: "", 2: "", 5: ""}
    bundles = sorted(seen.observation.folder.glob("bundle-*"))
    assert [b.name for b in bundles] == ["bundle-step1", "bundle-step5"]
    assert [read_bundle(b).redacted for b in bundles] == [redact] * 2


@dataclass
class Kept:
    """A training whose tapes are looked at while they are in memory."""

    observation: object
    steps: list = field(default_factory=list)

    @property
    def tapes(self):
        return self.observation._observer.tapes.kept


@contextlib.contextmanager
def watched(folder, **options):
    observation = attach(folder / "run", tapes=TapeOptions(**options))
    try:
        yield Kept(observation)
    finally:
        assert observation._observer.failure is None
        observation.close()


def test_first_and_last_tape_stay_when_memory_is_short(tmp_path):
    with watched(tmp_path) as kept:
        plain(STEPS)
        assert [t.step for t in kept.tapes] == CHOSEN
        size = kept.tapes[0].bytes
    with watched(tmp_path / "less", most_bytes=3 * size) as kept:
        plain(STEPS)
        assert [t.step for t in kept.tapes] == [0, 2, 30]
        assert sum(t.bytes for t in kept.tapes) <= 3 * size


@pytest.mark.parametrize("most_bytes", [0, 100])
def test_without_memory_for_tapes_none_is_made(tmp_path, most_bytes):
    with observed(tmp_path, tapes=TapeOptions(most_bytes=most_bytes)) as seen:
        plain(8)
        assert stack_depth() == 0
    assert told(seen.run) == {}
    assert seen.trace.updates == 8
    expected = [] if most_bytes == 0 else ["steps could not be recorded: its copies of parameters and data need more"]
    assert [limit[: len(e)] for limit, e in zip(seen.run.facts.limits, expected, strict=True)] == expected


def test_a_jump_of_the_loss_records_one_more_step(tmp_path):
    with observed(tmp_path) as seen:
        model = net()
        optimizer = SGD(model.parameters(), lr=1e-4)
        train(model, optimizer, 70)
        x, y = batch()
        train(model, optimizer, 1, (1e3 * x, y))
        train(model, optimizer, 5)
    assert sorted(told(seen.run)) == [*CHOSEN, 71]


def test_two_optimizers_with_losses_of_different_size_are_not_suspicious(tmp_path):
    """The loss of one is no jump of the other's."""
    with observed(tmp_path) as seen:
        small, large = net(), net()
        optimizers = [SGD(m.parameters(), lr=1e-5) for m in (small, large)]
        for _ in range(80):
            train(small, optimizers[0], 1)
            if _ % 9 == 0:
                train(large, optimizers[1], 1, loss=lambda out, y: 1e3 * F.cross_entropy(out, y))
    assert sorted(told(seen.run, 0)) == CHOSEN


# -- memory


class Big(nn.Module):
    """Gives a weak reference to each of its activations away."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.activations = nn.Linear(4, 64), nn.Linear(64, 3), []

    def forward(self, x):
        hidden = self.a(x)
        out = self.b(hidden.tanh())
        self.activations += [weakref.ref(hidden), weakref.ref(out)]
        return out


@pytest.mark.parametrize("steps", [3, 30, 35])
def test_nothing_of_a_step_is_held_after_its_backward_and_its_update(tmp_path, steps):
    """Steps 3 and 35 are captured, 30 is recorded."""
    with observed(tmp_path):
        model = Big()
        optimizer = SGD(model.parameters(), lr=0.1)
        train(model, optimizer, steps)
        x, y = batch()
        held = [weakref.ref(x), weakref.ref(y)]
        model.activations.clear()
        F.cross_entropy(model(x), y).backward()
        assert [a() for a in model.activations] == [None, None]
        optimizer.step()
        del x, y
        assert [h() for h in held] == [None, None]


@pytest.mark.parametrize("steps", [3, 35])
def test_activations_between_modules_that_are_called_in_turn_are_not_held(tmp_path, steps):
    with observed(tmp_path):
        model = Parts()
        optimizer = SGD(model.parameters(), lr=0.1)
        x, y = batch()

        def step():
            hidden = model.encoder(x)
            made.append(weakref.ref(hidden))
            return F.cross_entropy(model.head(hidden), y)

        for _ in range(steps):
            made = []
            optimizer.zero_grad()
            step().backward()
            optimizer.step()
        step().backward()
        assert [m() for m in made] == [None, None]


def live_bytes():
    gc.collect()
    there = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in gc.get_objects() if _is_tensor(t)}
    return sum(there.values())


def _is_tensor(thing):
    return issubclass(type(thing), torch.Tensor)


def test_a_captured_step_takes_no_memory_to_speak_of(tmp_path):
    """Between backward and update, where gradients and captured batch are there: next to no bytes more."""

    def peak():
        model = mlp(64, 256, 256, 10)
        optimizer = SGD(model.parameters(), lr=0.01)
        data = batch(256, 64, 10)
        train(model, optimizer, 5, data)
        F.cross_entropy(model(data[0]), data[1]).backward()
        return live_bytes()

    before = live_bytes()
    bare = peak() - before
    observation = attach(tmp_path / "run", tapes=TapeOptions(most_bytes=0))
    without = peak() - before
    observation.close()
    observation = attach(tmp_path / "run2")
    kept = observation._observer.tapes
    model_and_step = peak() - before - sum(t.bytes for t in kept.kept)
    observation.close()
    assert model_and_step - without <= 0.05 * bare


# -- neutral


def surroundings():
    """What recording changes in torch while it goes on."""
    return [
        *(torch.autograd.backward, torch.Tensor.backward, torch.clear_autocast_cache, torch.jit.script, torch.compile),
        *(vars(_SingleLevelFunction).get("apply"), torch.optim.Optimizer.__init__, stack_depth()),
    ]


def hooks_of(model):
    return [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


@pytest.mark.parametrize("loop", ["plain", "scaled", "checkpointed reentrant", "closure", "submodules called"])
def test_nothing_is_left_in_torch_or_the_model(tmp_path, loop, monkeypatch):
    """After the run, and in the middle of a step, too, if it ends there."""
    made = []
    build = nn.Module.__init__
    monkeypatch.setattr(nn.Module, "__init__", lambda self, *a, **k: (made.append(self), build(self, *a, **k))[1])
    before = surroundings()
    for steps in (2, 5):
        with observed(tmp_path / str(steps)):
            LOOPS[loop](steps)
            last = made[-1]
            if isinstance(last, nn.Linear):
                last(torch.ones(1, last.in_features))
        assert surroundings() == before
        assert [h for m in made for h in hooks_of(m)] == []


def modes():
    return [type(torch._C._get_function_stack_at(i)).__name__ for i in range(stack_depth())]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_a_block_that_sets_the_default_device_around_a_step_is_undone(tmp_path, steps):
    """Our mode comes and goes while the user's is on the stack."""
    with observed(tmp_path):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        train(model, optimizer, steps)
        with torch.device("cpu"):
            out = model(batch()[0])
            assert modes()[-1:] == ["DeviceContext"]
        assert "DeviceContext" not in modes()
        out.sum().backward()
        with torch.device("meta"):
            optimizer.step()
            assert torch.empty(1).device.type == "meta"
        assert torch.empty(1).device.type == "cpu"
    assert stack_depth() == 0


def copied(how, model, x):
    """What a user may do with a model: the graph that is made, and what it gives."""
    if how == "script":
        return "", torch.jit.script(model)(x)
    if how == "trace":
        traced = torch.jit.trace(model, x)
        return " ".join(n.kind() for n in traced.inlined_graph.nodes()), traced(x)
    if how == "export":
        exported = torch.export.export(model, (x,))
        return " ".join(n.name for n in exported.graph.nodes), exported.module()(x)
    if how == "fx":
        return " ".join(n.name for n in torch.fx.symbolic_trace(model).graph.nodes), model(x)
    if how == "pickle":
        return "", pickle.loads(pickle.dumps(model))(x)
    if how == "save":
        file = io.BytesIO()
        torch.save(model, file)
        return "", torch.load(io.BytesIO(file.getvalue()), weights_only=False)(x)
    return "", copy.deepcopy(model)(x)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("amid", [False, True])
@pytest.mark.parametrize("how", ["script", "trace", "export", "fx", "pickle", "save", "deepcopy"])
def test_a_model_that_is_observed_can_be_copied_traced_and_saved(tmp_path, how, amid):
    """Between two steps, and between forward and backward."""

    def made(around):
        with around:
            model = nn.Sequential(net(), nn.Tanh())
            optimizer = SGD(model.parameters(), lr=0.1)
            train(model, optimizer, 4)
            loss = F.cross_entropy(model(batch()[0]), batch()[1]) if amid else None
            graph, result = copied(how, model, batch()[0])
            if loss is not None:
                loss.backward()
            train(model, optimizer, 3)
        return graph, result, [p.detach().clone() for p in model.parameters()]

    (graph, *watched), (expected, *alone) = made(observed(tmp_path)), made(contextlib.nullcontext())
    assert graph == expected
    torch.testing.assert_close(watched, alone, rtol=0, atol=0)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_scripting_finds_the_names_of_its_caller(tmp_path):
    """Our wrapper is one frame more between TorchScript and the names that it looks up; our hooks are back after."""
    with observed(tmp_path):
        model = net()
        optimizer = SGD(model.parameters(), lr=0.1)
        train(model, optimizer, 4)
        before = hooks_of(model)

        def twice(x: torch.Tensor) -> torch.Tensor:
            return 2 * x

        def four(x: torch.Tensor) -> torch.Tensor:
            return twice(twice(x))

        assert torch.jit.script(four)(torch.ones(1)).item() == 4
        torch.jit.script(model)
        assert hooks_of(model) == before
        assert before


CARRIERS = {  # they carry a call of the user's own, or are themselves how an observation ends
    *("_compiled_call", "_call", "_function", "compiled_call", "guarded", "_attempt", "mine", "_listening"),
    *("enter", "leave", "away", "stop", "clear", "release", "_exit", "_remove", "_let_go", "_drop", "_close", "_merge"),
    *("pause", "paused"),
}
OURS = [
    *((kind, name) for kind in (Tapes, Entries, Capture, Recorder) for name, value in vars(kind).items()),
    *((tapes, name) for name in ("prove", "locate", "step_graph", "write_bundle", "setup_of", "gradients_of")),
]
BREAKABLE = [
    (owner, name)
    for owner, name in OURS
    if callable(getattr(owner, name)) and not name.startswith("__") and name not in CARRIERS
]


class Spoilt(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.norm, self.head = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(F.dropout(torch.relu(self.norm(self.inner(x))), 0.2, self.training))


def spoilt_training():
    """Four updates are recorded or captured; the fifth turns non-finite, and is asked for on disk."""
    model = Spoilt()
    optimizer = SGD(model.parameters(), lr=0.1)
    for i in range(5):
        x, y = batch(seed=i)
        train(model, optimizer, 1, (x * (float("inf") if i == 4 else 1.0), y))
    return [*(v.clone() for v in model.state_dict().values()), torch.get_rng_state()], model


@pytest.mark.parametrize(("owner", "name"), BREAKABLE, ids=lambda v: getattr(v, "__name__", v).rpartition(".")[2])
def test_an_error_of_ours_never_reaches_the_training(tmp_path, monkeypatch, capsys, owner, name):
    """It ends the observation with one warning, or one recording with a word in the journal."""
    before = surroundings()

    def fail(*args, **kwargs):
        raise ZeroDivisionError("this is broken")

    monkeypatch.setattr(owner, name, fail)
    observation = attach(tmp_path / "run", tapes=TapeOptions(bundles=frozenset((1,))))
    result, model = spoilt_training()
    observation.close()
    monkeypatch.undo()
    said = stderr_lines(capsys)
    assert len(said) == (1 if observation._observer.failure else 0), said
    assert surroundings() == before
    assert hooks_of(model) == []
    expected = EXPECTED[0] if EXPECTED else EXPECTED.append(spoilt_training()[0]) or EXPECTED[0]
    torch.testing.assert_close(result, expected, rtol=0, atol=0, equal_nan=True)


EXPECTED = []
