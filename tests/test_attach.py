"""What passes through torch is seen as it happened, whatever way the script goes."""

import copy
import gc
import pickle
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks
from torch.utils.checkpoint import checkpoint

from training import batch, mlp, names, observed, train
from whyloss.observe import attach


class Twice(torch.optim.SGD):
    def step(self, closure=None):
        return super().step(closure)


class Failing(torch.optim.SGD):
    fail = True

    def step(self, closure=None):
        if self.fail:
            raise RuntimeError("out of memory")
        return super().step(closure)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate's: no super().__init__, everything handed on."""

    def __init__(self, inner):
        self.inner = inner

    @property
    def param_groups(self):
        return self.inner.param_groups

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad(set_to_none)

    def step(self, closure=None):
        return self.inner.step(closure)


class Duck:
    """Behaves like an optimizer and is none."""

    def __init__(self, parameters):
        self.parameters = list(parameters)

    def zero_grad(self):
        for p in self.parameters:
            p.grad = None

    @torch.no_grad()
    def step(self):
        for p in self.parameters:
            p -= 0.1 * p.grad


def sgd(model, lr=0.1, **options):
    return torch.optim.SGD(model.parameters(), lr=lr, **options)


def test_a_step_that_calls_its_super_step_is_one_update(tmp_path):
    """Both step() of a subclass fire torch's hooks; the update is counted once."""
    sgd(mlp(4, 3))  # torch wraps SGD.step, too, once SGD itself was used
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        losses = train(model, Twice(model.parameters(), lr=0.1), 4)
    assert seen.trace.updates == 4
    assert seen.values("loss/train") == pytest.approx(losses)


def test_a_wrapper_without_super_init_leaves_the_inner_optimizer(tmp_path):
    """Only the real optimizer is a trace."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        losses = train(model, Wrapper(sgd(model)), 3)
    assert (seen.trace.optimizer, seen.trace.updates) == ("SGD", 3)
    assert seen.values("loss/train") == pytest.approx(losses)


def test_a_step_that_raises_is_no_update_and_the_retry_is_one(tmp_path):
    """An exception out of step() leaves no half-open update behind, nor a reference to the frames it left."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = Failing(model.parameters(), lr=0.1)
        x, y = batch()
        for attempt in range(4):
            optimizer.fail = attempt == 1
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if optimizer.fail:
                with pytest.raises(RuntimeError, match="out of memory"):
                    optimizer.step()
                optimizer.fail = False
            optimizer.step()
    assert seen.trace.updates == 4
    assert seen.values("backwards") == [1, 1, 1, 1]
    assert [names(o) for o in seen.trace.orders] == [
        ["zero_grad", "backward", "step"],
        ["zero_grad", "backward", "step", "step"],
    ]


def test_a_duck_typed_optimizer_has_no_update_but_its_backward_passes_are_seen(tmp_path):
    """Zero steps, pending backward passes, and weights that change all the same."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        train(model, Duck(model.parameters()), 5)
    assert seen.run.updates == 0
    assert [(p.backwards, p.weights_changed) for p in seen.run.pending] == [
        (1, False),
        (2, True),
        (4, True),
        (5, True),
    ]


def test_no_update_at_all_leaves_the_weights_as_they_were(tmp_path):
    """Pending backward passes say that nothing changed."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        for _ in range(4):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
    assert [(p.backwards, p.weights_changed) for p in seen.run.pending][-1] == (4, False)
    assert len(seen.run.facts.optimizers_built) == 1


def scaled_training(model, optimizer, overflow=(), steps=4):
    """With a loss scaler; the losses of the updates and their true gradients."""
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = batch()
    losses, grads = [], []
    for step in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y) * (float("inf") if step in overflow else 1.0)
        if step not in overflow:
            grads.append(
                [g.norm().item() for g in torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)]
            )
            losses.append(loss.item())
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return losses, grads


def test_a_loss_scaler_changes_neither_the_loss_nor_the_gradients(tmp_path):
    """The loss is the unscaled one, the gradients are those that the optimizer got; a skipped update is none."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        losses, grads = scaled_training(model, sgd(model), overflow=(2,))
    assert seen.values("loss/train") == pytest.approx(losses)
    assert [seen.values(f"grad/norm[{n}]") for n, _ in model.named_parameters()] == [
        pytest.approx([g[i] for g in grads], rel=1e-5) for i in range(4)
    ]
    assert seen.run.skipped_updates == ((0, 2),)
    assert names(seen.trace.orders[0]) == ["zero_grad", "backward", "unscale", "step"]


def test_a_first_update_that_is_skipped_is_recorded(tmp_path):
    """Even before the optimizer ever stepped."""
    model = mlp(4, 8, 3)
    optimizer = sgd(model)
    with observed(tmp_path) as seen:
        scaled_training(model, optimizer, overflow=(0, 1))
    assert seen.run.skipped_updates == ((0, 0), (0, 0))
    assert seen.trace.updates == 2


def test_a_fused_optimizer_has_its_scale_divided_out(tmp_path):
    """A fused step unscales by itself: its gradients are still scaled when its hooks run."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        losses, grads = scaled_training(model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True))
    assert seen.values("loss/train") == pytest.approx(losses)
    assert [seen.values(f"grad/norm[{n}]") for n, _ in model.named_parameters()] == [
        pytest.approx([g[i] for g in grads], rel=1e-5) for i in range(4)
    ]
    assert seen.values("found-inf") == [0, 0, 0, 0]


def test_a_fused_optimizer_that_leaves_an_update_out_says_so(tmp_path):
    """Its hooks fire although the weights stay: found-inf is 1 and nothing moved."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        scaled_training(model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True), overflow=(1,))
    assert seen.values("found-inf") == [0, 1, 0, 0]
    assert seen.values("update/norm[0.weight]")[1] == 0


@pytest.mark.parametrize("limit", [0.01, float("inf")])
def test_clipping_is_seen_through_a_function_imported_before(tmp_path, limit):
    """clip_grad_norm_ was bound before the patches: the limit, the norm before and the gradients after are there."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        before = []
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            before.append(clip_grad_norm_(model.parameters(), limit).item())
            optimizer.step()
    assert seen.values("clip/limit") == [limit] * 3
    assert seen.values("clip/norm") == pytest.approx(before)
    assert seen.values("grad/total") == pytest.approx([min(limit, b) for b in before], rel=1e-3)
    assert names(seen.trace.orders[0]) == ["zero_grad", "backward", "clip_norm", "step"]


def test_clipping_by_value_is_seen(tmp_path):
    """The limit of each coordinate; a generator of parameters is not used up by looking at it."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        torch.nn.utils.clip_grad_value_(model.parameters(), 1e-4)
        largest = max(p.grad.abs().max().item() for p in model.parameters())
        optimizer.step()
    assert largest == pytest.approx(1e-4)
    assert seen.values("clip/value") == [1e-4]
    assert clip_grad_value_ is torch.nn.utils.clip_grad_value_


def test_clipping_with_a_given_norm_leaves_a_generator_for_torch(tmp_path):
    """clip_grads_with_norm_ goes through its parameters once."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        F.cross_entropy(model(x), y).backward()
        total = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        torch.nn.utils.clip_grads_with_norm_(model.parameters(), 0.01, total)
        optimizer.step()
    assert seen.values("clip/norm") == pytest.approx([total.item()])
    assert seen.values("grad/total") == pytest.approx([0.01], rel=1e-3)


def test_lbfgs_is_one_update_a_step_with_the_loss_it_began_with(tmp_path):
    """The closure runs many times; the gradient is there only after the step."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3, activation=nn.Tanh)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=5)
        x, y = batch()
        first = []

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            return loss

        for _ in range(3):
            losses = []
            optimizer.step(closure)
            first.append(losses[0])
    assert seen.values("loss/train") == pytest.approx(first)
    assert seen.values("objective/value") == pytest.approx(first)
    assert [names(o) for o in seen.trace.orders] == [["step", "zero_grad", "backward"]]
    assert all(g > 0 for g in seen.values("grad/norm[0.weight]"))
    assert seen.values("grad/leftover") == [0, 0]


def test_sgd_with_a_closure_has_its_gradients(tmp_path):
    """The gradients that the update was made with, though they came inside step()."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        grads, losses = [], []

        def closure():
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
            grads.append(model[0].weight.grad.norm().item())
            return loss

        for _ in range(3):
            optimizer.step(closure)
    assert seen.values("grad/norm[0.weight]") == pytest.approx(grads)
    assert seen.values("loss/train") == pytest.approx(losses)


def test_accumulated_micro_batches_are_averaged_and_counted(tmp_path):
    """loss/train is the mean of what backward() was called of."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        means = []
        for step in range(3):
            optimizer.zero_grad()
            losses = []
            for micro in range(4):
                x, y = batch(seed=4 * step + micro)
                loss = F.cross_entropy(model(x), y) / 4
                loss.backward()
                losses.append(loss.item())
            optimizer.step()
            means.append(sum(losses) / 4)
    assert seen.values("loss/train") == pytest.approx(means)
    assert seen.values("backwards") == [4, 4, 4]
    assert [names(o) for o in seen.trace.orders] == [["zero_grad", *["backward"] * 4, "step"]]
    assert seen.values("order") == [0, 0, 0]


def test_many_micro_batches_keep_the_step_in_their_order(tmp_path):
    """A long accumulation is cut short, not cut off."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        for count in (60, 90):
            optimizer.zero_grad()
            for _ in range(count):
                F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert [names(o) for o in seen.trace.orders] == [["zero_grad", *["backward"] * 8, "step"]]
    assert seen.values("backwards") == [60, 90]


def adversarial(steps=3):
    """A generator and a discriminator in the usual loop; their losses."""
    g, d = nn.Linear(2, 4), nn.Linear(4, 1)
    g_optimizer, d_optimizer = torch.optim.Adam(g.parameters()), sgd(d)
    real, noise = batch()[0], torch.randn(16, 2)
    g_losses, d_losses = [], []
    for _ in range(steps):
        d_optimizer.zero_grad()
        d_loss = d(g(noise).detach()).mean() - d(real).mean()
        d_loss.backward()
        d_optimizer.step()
        g_optimizer.zero_grad()
        g_loss = -d(g(noise)).mean()
        g_loss.backward()
        g_optimizer.step()
        g_losses.append(g_loss.item())
        d_losses.append(d_loss.item())
    return g_losses, d_losses


def test_two_losses_go_to_the_optimizers_whose_gradients_they_make(tmp_path):
    """A generator's loss is no discriminator's loss, though its gradient passes there and is cleared."""
    with observed(tmp_path) as seen:
        g_losses, d_losses = adversarial()
    assert [t.optimizer for t in seen.run.traces] == ["Adam", "SGD"]
    assert seen.values("loss/train", 0) == pytest.approx(g_losses)
    assert seen.values("loss/train", 1) == pytest.approx(d_losses)
    assert [[t.name for t in trace.tensors] for trace in seen.run.traces] == [["weight", "bias"]] * 2
    assert [s for t in (0, 1) for s in seen.values("grad/leftover", t)] == [0] * 4


def test_one_loss_of_two_optimizers_is_the_loss_of_both(tmp_path):
    """Matrices to one optimizer and the rest to another: each trace has its own tensors and the same loss."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        first = torch.optim.SGD([p for p in model.parameters() if p.ndim == 2], lr=0.1)
        second = torch.optim.AdamW([p for p in model.parameters() if p.ndim < 2])
        x, y = batch()
        for _ in range(3):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            first.step()
            second.step()
    assert [[t.name for t in trace.tensors] for trace in seen.run.traces] == [
        ["0.weight", "2.weight"],
        ["0.bias", "2.bias"],
    ]
    assert seen.values("loss/train", 0) == seen.values("loss/train", 1)
    assert seen.values("grad/leftover", 1) == [0, 0]


def test_clipping_one_model_is_no_clipping_of_the_other(tmp_path):
    """A clip is of the optimizer whose parameters it was given."""
    with observed(tmp_path) as seen:
        a, b = mlp(4, 3), mlp(4, 3)
        optimizers = sgd(a), sgd(b)
        x, y = batch()
        (F.cross_entropy(a(x), y) + F.cross_entropy(b(x), y)).backward()
        clip_grad_norm_(a.parameters(), 0.5)
        for optimizer in optimizers:
            optimizer.step()
    assert seen.values("clip/limit", 0) == [0.5]
    assert seen.values("clip/limit", 1) is None


def test_autocast_changes_nothing_that_is_seen(tmp_path):
    """Under bf16 autocast the loss, the gradients and the sketches are recorded in full precision."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert seen.values("loss/train") == pytest.approx(losses)
    assert len(seen.values("activation/std[1]")) == 3
    assert seen.trace.objectives[0].kind == "cross_entropy"


@pytest.mark.parametrize("how", ["none", "zeros", "by hand", "model", "never"])
def test_every_way_of_clearing_gradients_leaves_none_over(tmp_path, how):
    """grad/leftover is 0 where they were cleared, the last gradient's norm and more where not."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        for _ in range(3):
            if how in ("none", "zeros"):
                optimizer.zero_grad(set_to_none=how == "none")
            elif how == "model":
                model.zero_grad()
            elif how == "by hand":
                for p in model.parameters():
                    p.grad = None
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    total = seen.values("grad/total")
    assert seen.values("grad/leftover") == (pytest.approx(total[:2]) if how == "never" else [0, 0])


def test_gradients_of_zeros_by_hand_are_none_left_over(tmp_path):
    """p.grad.zero_() is seen by the norm that is left."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            for p in model.parameters():
                p.grad.zero_()
    assert seen.values("grad/leftover") == [0, 0]


def test_backward_called_as_a_function_is_seen(tmp_path):
    """torch.autograd.backward of several losses: their sum is the loss."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        loss = F.cross_entropy(model(x), y)
        penalty = model[0].weight.square().sum()
        torch.autograd.backward([loss, penalty])
        optimizer.step()
    assert seen.values("loss/train") == pytest.approx([loss.item() + penalty.item()])
    assert all(t.in_graph for t in seen.trace.tensors)


def test_several_backward_calls_through_one_graph_are_counted(tmp_path):
    """retain_graph: two calls, the mean of both losses, the sum of both gradients."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        out = model(x)
        a, b = F.cross_entropy(out, y), out.square().mean()
        a.backward(retain_graph=True)
        b.backward()
        optimizer.step()
    assert seen.values("backwards") == [2]
    assert seen.values("loss/train") == pytest.approx([(a.item() + b.item()) / 2])


def test_a_loss_that_is_no_scalar_has_a_graph_but_no_value(tmp_path):
    """backward(gradient=…): no loss is observed, what it reaches is."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        out = model(batch()[0])
        out.backward(gradient=torch.ones_like(out))
        optimizer.step()
    assert seen.trace.loss is None
    assert [t.in_graph for t in seen.trace.tensors] == [True] * 4


def test_sparse_gradients_have_norms(tmp_path):
    """Repeated indices of a sparse embedding gradient are added up before the norm is taken; left-over ones too."""
    with observed(tmp_path) as seen:
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 3))
        optimizer = sgd(model)
        x, y = torch.tensor([1, 1, 2, 3]), torch.tensor([0, 1, 2, 0])
        norms = []
        for _ in range(3):
            F.cross_entropy(model(x), y).backward()
            norms.append(model[0].weight.grad.to_dense().norm().item())
            optimizer.step()
    assert seen.values("grad/norm[0.weight]") == pytest.approx(norms)
    assert seen.values("grad/leftover") == pytest.approx(seen.values("grad/total")[:2])


def test_checkpointing_counts_each_module_once(tmp_path):
    """The forward pass inside backward is no second one; a reentrant one calls backward() itself."""
    for reentrant in (False, True):
        with observed(tmp_path / str(reentrant)) as seen:
            block, head = mlp(4, 8, 8), nn.Linear(8, 3)
            model = nn.ModuleDict({"block": block, "head": head})
            optimizer = sgd(model)
            x, y = batch()
            for _ in range(3):
                optimizer.zero_grad()
                hidden = checkpoint(block, x.requires_grad_(), use_reentrant=reentrant)
                F.cross_entropy(head(hidden), y).backward()
                optimizer.step()
        assert seen.values("backwards") == [1, 1, 1]
        assert [m.slots for m in seen.trace.modules if m.path in ("block.1", "head")] == [
            () if reentrant else ("block.1",),
            ("head",),
        ]
        assert all(g > 0 for g in seen.values("grad/norm[block.0.weight]"))


def test_no_unpack_hook_of_a_checkpoint_is_run(tmp_path):
    """Looking at the loss op must not recompute a checkpointed forward pass."""
    runs = []

    class Head(nn.Module):
        def forward(self, x, y):
            runs.append(torch._C._current_graph_task_id())
            return F.cross_entropy(x, y)

    with observed(tmp_path):
        model, head = mlp(4, 8, 3), Head()
        optimizer = sgd(model)
        x, y = batch()
        checkpoint(head, model(x), y, use_reentrant=False).backward()
        optimizer.step()
    assert [r == -1 for r in runs] == [True, False]


def test_reentrant_checkpoints_inside_a_model_are_sketched(tmp_path):
    """Their first forward pass runs without gradients, but within a model that trains."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.block, self.head = nn.Linear(4, 8), mlp(8, 8, 8), nn.Linear(8, 3)

        def forward(self, x):
            return self.head(checkpoint(self.block, self.inner(x), use_reentrant=True))

    with observed(tmp_path) as seen:
        model = Net()
        train(model, sgd(model), 2)
    assert [m.slots for m in seen.trace.modules] == [("inner",), ("block.0",), ("block.1",), ("block.2",), ("head",)]


def test_another_thread_is_left_alone(tmp_path):
    """A second training, in a thread, adds nothing."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        train(model, optimizer, 2)
        other = mlp(4, 8, 3)
        thread = threading.Thread(target=lambda: train(other, sgd(other), 5))
        thread.start()
        thread.join()
        train(model, optimizer, 1)
    assert seen.trace.updates == 3


def test_two_trainings_in_a_row_are_two_traces(tmp_path):
    """The second may get the memory, and so the ids, of the first."""
    with observed(tmp_path) as seen:
        for steps in (2, 3, 4):
            model = mlp(4, 8, 3)
            train(model, sgd(model), steps)
            del model
            gc.collect()
    assert [t.updates for t in seen.run.traces] == [2, 3, 4]
    assert [len(t.every.columns) for t in seen.run.traces] == [len(seen.run.traces[0].every.columns)] * 3
    assert len({t.key for trace in seen.run.traces for t in trace.tensors}) == 12


def test_nothing_of_a_training_that_is_over_is_held(tmp_path):
    """Once the script lets go of model and optimizer, they are gone; after close() even if it kept the optimizer."""
    with observed(tmp_path):
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        train(model, optimizer, 3)
        held = [weakref.ref(model), weakref.ref(optimizer), weakref.ref(model[0].weight)]
        del model, optimizer
        gc.collect()
        assert [h() for h in held] == [None, None, None]
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        train(model, optimizer, 3)
        held = weakref.ref(model)
    del model
    gc.collect()
    assert held() is None


def test_a_failed_step_holds_no_frame(tmp_path):
    """The frames that an exception left would keep every local variable of the script alive."""
    with observed(tmp_path):

        def attempt():
            model = mlp(4, 8, 3)
            optimizer = Failing(model.parameters(), lr=0.1)
            F.cross_entropy(model(batch()[0]), batch()[1]).backward()
            with pytest.raises(RuntimeError):
                optimizer.step()
            return weakref.ref(model)

        held = attempt()
        gc.collect()
        assert held() is None


def live_hooks(model):
    return [h for m in model.modules() for h in (*m._forward_hooks.values(), *m._forward_pre_hooks.values())]


def test_copies_made_amid_a_step_are_not_watched(tmp_path):
    """deepcopy, pickle and torch.save work between forward and backward; the copies run without being seen."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        train(model, optimizer, 1)
        loss = F.cross_entropy(model(x), y)
        copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        torch.save(model, tmp_path / "model.pt")
        copies.append(torch.load(tmp_path / "model.pt", weights_only=False))
        loss.backward()
        for c in copies:
            with torch.no_grad():
                for p in c.parameters():
                    p.zero_()
            c(x)
        optimizer.step()
        assert all(type(h).__name__ != "Hook" for c in copies for h in live_hooks(c))
    assert min(seen.values("activation/std[0]")) > 0


def test_an_averaged_copy_changes_no_signal(tmp_path):
    """Exponential moving averages are updated and evaluated at every step."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        average = copy.deepcopy(model)
        x, _ = batch()
        for _ in range(3):
            train(model, optimizer, 1)
            with torch.no_grad():
                for a, p in zip(average.parameters(), model.parameters(), strict=True):
                    a.lerp_(p, 0.1)
                average(1000 * x)
    assert max(seen.values("activation/high[0]")) < 20
    assert {t.name for t in seen.trace.tensors} == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_everything_is_taken_back_at_the_end(tmp_path):
    """After close() torch is what it was, and no module has a hook."""
    optim, clip = torch.optim.Optimizer, torch.nn.utils.clip_grad

    def state():
        scaler, schedulers = torch.amp.GradScaler, torch.optim.lr_scheduler
        return [
            *(torch.autograd.backward, optim.__init__, optim.zero_grad, nn.Module.zero_grad, scaler.step, scaler.scale),
            *(
                scaler.unscale_,
                clip._clip_grads_with_norm_,
                clip.clip_grad_value_,
                torch.nn.utils.clip_grads_with_norm_,
            ),
            *(torch.nn.utils.clip_grad_value_, schedulers.LRScheduler.step, schedulers.ReduceLROnPlateau.step),
            *(len(_global_optimizer_pre_hooks), len(_global_optimizer_post_hooks)),
        ]

    before = state()
    with observed(tmp_path):
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        train(model, optimizer, 2)
        assert state() != before
        assert live_hooks(model)
    assert state() == before
    assert live_hooks(model) == []


def test_a_patch_on_top_of_ours_stays(tmp_path):
    """Somebody who wrapped backward() after us keeps the wrapper when we leave."""
    observation = attach(tmp_path / "run")
    original, ours = observation._patches, torch.autograd.backward
    torch.autograd.backward = wrapper = lambda *a, **k: ours(*a, **k)
    observation.close()
    assert torch.autograd.backward is wrapper
    assert original._undo == []
    torch.autograd.backward = ours.__wrapped__


def test_no_hook_stays_on_a_model_that_is_not_observed_now(tmp_path):
    """After the first 20 updates hooks are there at every tenth only, and then only around the model; but for the two
    that keep the current step in case it turns non-finite."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        counts = []
        for _ in range(31):
            counts.append(len(live_hooks(model)))
            train(model, optimizer, 1)
    assert [i for i, n in enumerate(counts) if n > 2] == [*range(20), 20, 30]
    assert set(counts[3:20]) == {4}
    assert set(counts[21:30]) == {2}
    assert seen.trace.sampled.steps.tolist() == [*range(20), 20, 30]


def test_validation_between_steps_enters_no_signal(tmp_path):
    """With no_grad or without, in eval mode, on the model that trains."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, _ = batch()
        for guard in (torch.no_grad, torch.inference_mode, torch.enable_grad, torch.no_grad):
            train(model, optimizer, 1)
            model.eval()
            with guard():
                model(1000 * x)
            model.train()
        train(model, optimizer, 1)
    assert max(seen.values("activation/high[0]")) < 20
    assert seen.values("training") == [1] * 5


def test_validation_keeps_the_fast_path_of_a_transformer(tmp_path):
    """torch's fused evaluation needs layers without hooks; its results are the same to the last bit."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.Linear(4, 8), nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), nn.Flatten())
    model.append(nn.Linear(40, 3))
    x, y = torch.randn(6, 5, 4), torch.randint(0, 3, (6,))

    def evaluate():
        model.eval()
        with torch.no_grad():
            out = model(x)
        model.train()
        return out

    with observed(tmp_path):
        optimizer = sgd(model)
        inside = [evaluate()]
        train(model, optimizer, 1, (x, y))
        inside.append(evaluate())
    assert torch.equal(inside[1], evaluate())
    assert not torch.equal(inside[0], inside[1])


def test_random_numbers_are_the_scripts_own(tmp_path):
    """Neither torch's nor NumPy's nor Python's generator is touched."""
    import random

    import numpy as np

    def states():
        return torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()

    torch.manual_seed(0)
    model = mlp(4, 8, 3)
    before = states()
    with observed(tmp_path):
        train(model, sgd(model), 25)
    assert states() == before


def test_an_optimizer_built_before_is_found(tmp_path):
    """With its first loss and its zero_grad."""
    model = mlp(4, 8, 3)
    optimizer = sgd(model)
    with observed(tmp_path) as seen:
        losses = train(model, optimizer, 3)
    assert seen.values("loss/train") == pytest.approx(losses)
    assert [names(o) for o in seen.trace.orders] == [["zero_grad", "backward", "step"]]


def test_schedulers_are_in_the_order_of_events(tmp_path):
    """Once a call of the user's, whatever they are made of; what their constructors do is no event."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        schedulers = torch.optim.lr_scheduler
        parts = [schedulers.ConstantLR(optimizer, total_iters=2), schedulers.ExponentialLR(optimizer, 0.9)]
        chain = schedulers.SequentialLR(optimizer, parts, milestones=[2])
        for _ in range(3):
            train(model, optimizer, 1)
            chain.step()
    assert [names(o) for o in seen.trace.orders] == [
        ["zero_grad", "backward", "step"],
        ["scheduler", "zero_grad", "backward", "step"],
    ]
    assert seen.values("lr[0]") == pytest.approx([0.1 / 3, 0.1 / 3, 0.1])


def test_an_optimizer_that_steps_within_backward(tmp_path):
    """As soon as a gradient is there: each has the loss whose gradient it used."""
    with observed(tmp_path) as seen:
        model = nn.Linear(4, 3)
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        x, y = batch()
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            losses.append(loss.item())
    assert seen.values("loss/train", 0) == pytest.approx(losses)
    assert seen.values("loss/train", 1) == pytest.approx(losses)
    assert seen.values("backwards", 0) == [1, 1, 1]


def test_gradients_cleared_too_early_keep_their_loss(tmp_path):
    """backward, zero_grad, step: the update has no gradient, and its loss is known."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        losses = []
        for _ in range(3):
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.zero_grad()
            optimizer.step()
            losses.append(loss.item())
    assert seen.values("loss/train") == pytest.approx(losses)
    assert seen.trace.every.absent("grad/norm[0.weight]").tolist() == [0, 1, 2]
    assert [t.in_graph for t in seen.trace.tensors] == [True] * 4


def test_gradients_taken_by_vmap_do_not_disturb(tmp_path):
    """Per-example gradients run the modules on tensors that are not plain ones."""
    with observed(tmp_path) as seen:
        model = mlp(4, 8, 3)
        optimizer = sgd(model)
        x, y = batch()
        for _ in range(2):
            parameters = dict(model.named_parameters())

            def loss(p, a, b):
                return F.cross_entropy(torch.func.functional_call(model, p, (a[None],)), b[None])

            grads = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(parameters, x, y)
            for name, p in model.named_parameters():
                p.grad = grads[name].mean(0)
            optimizer.step()
        train(model, optimizer, 1)
    assert seen.trace.updates == 3
