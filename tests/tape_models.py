"""Small models and steps, as users write them: what a tape has to hold.

Each function makes a model with its data and one step of its training, update included, on an optimizer of its own.
`reason` says why a tape of it can't be faithful, where that is so.
"""

import copy
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, rnn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


@dataclass
class Training:
    """A model, its optimizers, and one step of it; `keep` is state of the program that the step carries on."""

    model: nn.Module
    optimizers: tuple[torch.optim.Optimizer, ...]
    step: Callable[[], None]
    keep: dict = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Training]
    reason: str = ""  # why it is not faithful: a part of what the tape says
    ops: tuple[str, ...] = ()  # calls that must be on the tape
    warns: tuple[str, ...] = ()  # warnings of torch's own


CASES: dict[str, Case] = {}


def case(reason="", ops=(), warns=()):
    def add(make):
        name = make.__name__.strip("_")
        CASES[name] = Case(name, make, reason, ops, warns)
        return make

    return add


def simple(model, loss, optimizer=None, **keep):
    """zero_grad, forward, backward, update."""
    optimizer = optimizer or torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, momentum=0.9)

    def step():
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return Training(model, (optimizer,), step, keep)


def data(n=12, features=6, classes=3):
    return torch.randn(n, features), torch.randint(0, classes, (n,))


def mlp(*widths):
    layers = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


# -- layers


@case()
def perceptron():
    model, (x, y) = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), data()
    return simple(model, lambda: F.cross_entropy(model(x), y), torch.optim.AdamW(model.parameters(), 1e-2))


@case()
def batch_norm_and_dropout():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.Linear(128, 3),
    )  # fmt: skip
    x, y = torch.randn(6, 3, 8, 8), torch.randint(0, 3, (6,))
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case()
def convolutions_and_norms():
    model = nn.Sequential(
        nn.Conv2d(4, 8, 3), nn.GroupNorm(2, 8), nn.SiLU(), nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
        nn.ConvTranspose2d(8, 4, 3, stride=2), nn.LocalResponseNorm(2), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LayerNorm(16), nn.Linear(16, 1),
    )  # fmt: skip
    x = torch.randn(4, 4, 8, 8).to(memory_format=torch.channels_last)
    return simple(model, lambda: model(x).square().mean())


class Recurrent(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn, self.head = kind(6, 8, 2, dropout=0.2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@case()
def lstm():
    model, x, y = Recurrent(nn.LSTM), torch.randn(5, 4, 6), torch.randint(0, 3, (5,))
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case()
def gru():
    model, x, y = Recurrent(nn.GRU), torch.randn(5, 4, 6), torch.randint(0, 3, (5,))
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case(warns=("LSTM with projections",))
def lstm_with_projection_and_cell():
    model = nn.ModuleDict({"lstm": nn.LSTM(6, 8, proj_size=4, bidirectional=True), "cell": nn.GRUCell(8, 8)})
    x, h = torch.randn(4, 3, 6), torch.zeros(3, 8)

    def loss():
        out, state = model["lstm"](x)[0], h
        for t in out:
            state = model["cell"](t, state)
        return state.pow(2).mean()

    return simple(model, loss)


@case()
def packed_sequences():
    model = nn.LSTM(6, 8, batch_first=True)
    x, lengths = torch.randn(4, 5, 6), torch.tensor([5, 2, 4, 1])

    def loss():
        packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, (h, _) = model(packed)
        padded, n = rnn.pad_packed_sequence(out, batch_first=True)
        return padded.sum() / n.sum() + h.square().mean()

    return simple(model, loss)


@case()
def transformer_encoder():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(3, 5, 8)
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2, [False] * 4 + [True]])
    return simple(model, lambda: model(x, src_key_padding_mask=mask).square().mean())


@case()
def transformer():
    model = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    x, y = torch.randn(3, 5, 8), torch.randn(3, 4, 8)
    mask = nn.Transformer.generate_square_subsequent_mask(4)
    return simple(model, lambda: F.mse_loss(model(x, y, tgt_mask=mask, tgt_is_causal=True), y))


@case()
def attention_masks():
    model, x = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True), torch.randn(3, 5, 8)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    padding = torch.zeros(3, 5).index_fill(1, torch.tensor([4]), -math.inf)

    def loss():
        out, weights = model(x, x, x, attn_mask=causal)
        again, _ = model(x, x, x, key_padding_mask=padding, need_weights=False)
        return out.square().mean() + weights.sum() + again.abs().mean()

    return simple(model, loss)


@case(ops=("torch.nn.functional.scaled_dot_product_attention",))
def scaled_dot_product_attention():
    model, x = nn.Linear(8, 24), torch.randn(2, 5, 8)
    mask = torch.rand(5, 5) > 0.3
    mask.fill_diagonal_(True)

    def loss():
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in model(x).chunk(3, -1))
        masked = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=0.1)
        return (masked + F.scaled_dot_product_attention(q, k, v, is_causal=True)).square().mean()

    return simple(model, loss)


@case()
def embeddings():
    model = nn.ModuleDict({"words": nn.Embedding(20, 8, padding_idx=0, max_norm=1.0), "bag": nn.EmbeddingBag(20, 8)})
    tokens, offsets = torch.randint(0, 20, (10,)), torch.tensor([0, 4, 9])
    weights = model["words"].weight

    def loss():
        return model["words"](tokens).sum() + model["bag"](tokens, offsets).square().sum() + weights[3].sum()

    return simple(model, loss)


@case()
def sparse_embeddings():
    model = nn.ModuleDict(
        {"words": nn.Embedding(20, 8, sparse=True), "bag": nn.EmbeddingBag(20, 8, mode="sum", sparse=True)}
    )
    tokens = torch.randint(0, 20, (4, 3))
    optimizer = torch.optim.SparseAdam(model.parameters(), 1e-2)
    return simple(model, lambda: (model["words"](tokens).mean(1) * model["bag"](tokens)).sum(), optimizer)


@case()
def sparse_matrix():
    model, x = nn.Linear(6, 6), torch.randn(6, 6)
    graph = torch.eye(6).to_sparse() * 0.5
    return simple(model, lambda: torch.sparse.mm(graph, model(x)).square().mean())


@case()
def tied_weights():
    model = nn.Sequential(nn.Embedding(11, 8), nn.Linear(8, 8), nn.Linear(8, 11, bias=False))
    model[2].weight = model[0].weight
    tokens = torch.randint(0, 11, (7,))
    return simple(model, lambda: F.cross_entropy(model(tokens), tokens))


class Adapter(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, base.in_features)), nn.Parameter(torch.zeros(base.out_features, 2))
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        return self.base(x) + self.drop(x) @ self.a.T @ self.b.T * 2.0


@case()
def low_rank_adapters():
    model, (x, y) = nn.Sequential(Adapter(nn.Linear(6, 8)), nn.ReLU(), Adapter(nn.Linear(8, 3))), data()
    return simple(model, lambda: F.cross_entropy(model(x), y))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.experts = nn.Linear(6, 4), nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.gate.bias.data[3] = -100.0

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for i, expert in enumerate(self.experts):
            rows, slot = torch.where(chosen == i)
            if len(rows):
                out[rows] += weights[rows, slot, None] * expert(x[rows])
        return out


@case()
def idle_expert():
    model, (x, _) = Experts(), data()
    return simple(model, lambda: F.mse_loss(model(x), x))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 8), nn.Linear(4, 6)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, -1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(z), mean, log_variance


@case(ops=("torch.randn_like",))
def variational_autoencoder():
    model, (x, _) = Autoencoder(), data()

    def loss():
        out, mean, log_variance = model(x)
        return F.mse_loss(out, x) - 0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).mean()

    return simple(model, loss)


@case()
def distributions():
    from torch.distributions import Categorical, Normal, kl_divergence

    model, (x, _) = nn.Linear(6, 8), data()

    def loss():
        mean, scale = model(x).chunk(2, -1)
        q = Normal(mean, F.softplus(scale))
        picked = Categorical(logits=mean)
        action = picked.sample()
        drawn = q.rsample()
        return kl_divergence(q, Normal(0.0, 1.0)).mean() - picked.log_prob(action).mean() - q.log_prob(drawn).mean()

    return simple(model, loss)


@case()
def contrastive_loss():
    model, x = mlp(6, 8, 4), torch.randn(8, 6)

    def loss():
        a, b = F.normalize(model(x), dim=-1), F.normalize(model(x + 0.1 * torch.randn_like(x)), dim=-1)
        logits = a @ b.T / 0.07
        target = torch.arange(len(x))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.T, target)) / 2

    return simple(model, loss)


@case()
def siamese():
    model, a, b = mlp(6, 8, 4), torch.randn(8, 6), torch.randn(8, 6)
    same = torch.randint(0, 2, (8,)) * 2 - 1
    return simple(model, lambda: F.cosine_embedding_loss(model(a), model(b), same))


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(6)) for _ in range(3))
        self.heads = nn.ModuleDict({"a": mlp(6, 4, 1), "b": nn.Sequential(nn.Sequential(nn.Linear(6, 1)))})

    def forward(self, x, head="a", *, extra=None):
        for scale in self.scales:
            x = self.shared(x).relu() * scale
        return self.heads[head](x if extra is None else x + extra["shift"])


@case()
def nested_modules():
    model, (x, _) = Nested(), data()
    extra = {"shift": torch.randn(6)}
    return simple(model, lambda: (model(x) + model(x, head="b", extra=extra)).square().mean())


@case(warns=("Lazy modules are a new feature",))
def lazy_modules():
    model, (x, y) = nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3)), data()
    model(x)
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case()
def double_precision():
    model, x = mlp(6, 8, 1).double(), torch.randn(9, 6, dtype=torch.float64)
    return simple(model, lambda: model(x).square().mean())


class Spectral(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 2, dtype=torch.complex64))

    def forward(self, x):
        f = torch.fft.rfft(x, dim=-1, norm="ortho")
        f = F.pad(f, (0, 1)) * self.weight[:, 0] + torch.conj(self.weight[:, 1])
        return torch.fft.irfft(f, n=8, dim=-1) + torch.view_as_real(f).sum(-1).mean()


@case()
def complex_numbers():
    model, x = Spectral(), torch.randn(4, 6)
    return simple(model, lambda: model(x).square().mean())


@case()
def strange_strides():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 6))
    images = torch.randn(3, 5, 4, 4)[:, 1:4].to(memory_format=torch.channels_last)
    wide, column = torch.randn(6, 9).t()[::3], torch.randn(3, 1).expand(3, 6)

    def loss():
        return (model(images) * column + wide[:, :6].flip(0)).square().mean() + images.transpose(1, 3).sum()

    return simple(model, loss)


# -- normalised weights


@case(warns=("`torch.nn.utils.weight_norm` is deprecated",))
def weight_norm():
    model, (x, y) = nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)), data()
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case()
def weight_norm_parametrized():
    model, (x, y) = nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)), data()
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case()
def spectral_norm():
    model, (x, y) = nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3)), data()
    return simple(model, lambda: F.cross_entropy(model(x) + model(-x), y))


@case()
def spectral_norm_parametrized():
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 8)), nn.Tanh(), nn.Linear(8, 3))
    parametrizations.orthogonal(model[2])
    x, y = data()
    return simple(model, lambda: F.cross_entropy(model(x) + model(-x), y))


# -- checkpointing and autocast


def _checkpointed(reentrant):
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.3), nn.Tanh()) for _ in range(3))
    x = torch.randn(5, 6)

    def loss():
        h = blocks[0](x)
        for block in blocks[1:]:
            h = checkpoint(block, h, use_reentrant=reentrant)
        return h.square().mean()

    return simple(blocks, loss)


@case()
def checkpoint_reentrant():
    return _checkpointed(True)


@case()
def checkpoint_not_reentrant():
    return _checkpointed(False)


@case()
def checkpoint_of_a_sequence():
    model, x = mlp(6, 8, 8, 8, 3), torch.randn(5, 6, requires_grad=True)
    return simple(model, lambda: checkpoint_sequential(model, 2, x, use_reentrant=True).square().mean())


@case()
def autocast():
    model, (x, y) = mlp(6, 8, 3), data()

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(model(x), y)

    return simple(model, loss)


def _casts(**options):
    model, x = nn.ModuleList([nn.Linear(6, 6), nn.LayerNorm(6)]), torch.randn(5, 6)

    def loss():
        with torch.autocast("cpu", torch.bfloat16, **options):
            h = model[0](model[0](x))  # a weight used twice: its cast is kept
        with torch.autocast("cpu", torch.bfloat16, **options):
            h = model[1](model[0](h))
            with torch.autocast("cpu", enabled=False):
                h = model[0](h.float())
            h = model[0](h)
        return h.float().square().mean()

    return simple(model, loss)


@case()
def autocast_blocks():
    return _casts()


@case()
def autocast_without_cache():
    return _casts(cache_enabled=False)


@case()
def bfloat16_weights():
    model, x = mlp(6, 8, 3).bfloat16(), torch.randn(5, 6).bfloat16()
    return simple(model, lambda: model(x).float().square().mean())


@case()
def autocast_and_checkpoint():
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh()), torch.randn(5, 6)

    def loss():
        with torch.autocast("cpu", torch.bfloat16):
            return checkpoint(model, model(x), use_reentrant=False).float().square().mean()

    return simple(model, loss)


# -- several passes


@case()
def gradient_accumulation():
    model, (x, y) = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 3)), data()
    optimizer = torch.optim.Adam(model.parameters())

    def step():
        for part, target in zip(x.chunk(3), y.chunk(3), strict=True):
            (F.cross_entropy(model(part), target) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, (optimizer,), step)


@case()
def gradients_never_cleared():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def two_losses_of_one_graph():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        out = model(x)
        F.cross_entropy(out, y).backward(retain_graph=True)
        out.square().mean().backward()
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def losses_in_one_call():
    model, x = mlp(6, 8, 3), torch.randn(5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        optimizer.zero_grad(set_to_none=False)
        out = model(x)
        torch.autograd.backward([out.mean(), out.square()], [None, torch.full_like(out, 0.5)])
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def gradient_of_a_vector():
    model, x = mlp(6, 8, 3), torch.randn(5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        out = model(x)
        out.backward(gradient=torch.ones_like(out) / out.numel(), inputs=list(model[0].parameters()))
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def adversarial_networks():
    model = nn.ModuleDict({"g": mlp(4, 8, 6), "d": mlp(6, 8, 1)})
    g, d = (torch.optim.Adam(model[k].parameters(), 1e-2) for k in "gd")
    real, ones, zeros = torch.randn(8, 6), torch.ones(8, 1), torch.zeros(8, 1)

    def step():
        fake = model["g"](torch.randn(8, 4))
        d.zero_grad()
        loss = F.binary_cross_entropy_with_logits(model["d"](real), ones)
        (loss + F.binary_cross_entropy_with_logits(model["d"](fake.detach()), zeros)).backward()
        d.step()
        g.zero_grad()
        F.binary_cross_entropy_with_logits(model["d"](fake), ones).backward()
        g.step()

    return Training(model, (d, g), step)


@case()
def adversarial_networks_frozen_in_turn():
    model = nn.ModuleDict({"g": mlp(4, 8, 6), "d": mlp(6, 8, 1)})
    g, d = (torch.optim.SGD(model[k].parameters(), 1e-2) for k in "gd")
    real = torch.randn(8, 6)

    def step():
        fake = model["g"](torch.randn(8, 4))
        model["d"].requires_grad_(True)
        d.zero_grad()
        model["d"](real).mean().backward()
        (-model["d"](fake.detach()).mean()).backward()
        d.step()
        with torch.no_grad():
            for p in model["d"].parameters():
                p.clamp_(-0.1, 0.1)
        model["d"].requires_grad_(False)
        g.zero_grad()
        model["d"](fake).mean().backward()
        g.step()

    return Training(model, (d, g), step)


@case(ops=("torch.autograd.grad",))
def gradient_penalty():
    model, real, fake = mlp(6, 8, 1), torch.randn(8, 6), torch.randn(8, 6)

    def loss():
        mix = torch.rand(8, 1)
        between = (mix * real + (1 - mix) * fake).requires_grad_(True)
        (slope,) = torch.autograd.grad(model(between).sum(), between, create_graph=True)
        return model(fake).mean() - model(real).mean() + 10 * (slope.norm(2, dim=1) - 1).square().mean()

    return simple(model, loss)


@case()
def double_backward():
    model, (x, y) = mlp(6, 8, 3), data()

    def loss():
        first = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(first, list(model.parameters()), create_graph=True)
        return first + sum(s.square().sum() for s in slopes)

    return simple(model, loss)


@case(reason="has a graph that was not recorded", warns=("Using backward\\(\\) with create_graph=True",))
def backward_creating_a_graph():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward(create_graph=True)
        slopes = sum(p.grad.square().sum() for p in model.parameters())
        optimizer.zero_grad()
        slopes.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Training(model, (optimizer,), step)


@case()
def adversarial_inputs():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        attacked = x.clone().requires_grad_(True)
        for _ in range(2):
            F.cross_entropy(model(attacked), y).backward()
            attacked = (attacked + 0.01 * attacked.grad.sign()).detach().requires_grad_(True)
        optimizer.zero_grad()
        F.cross_entropy(model(attacked.detach()), y).backward()
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def adversarial_inputs_by_grad():
    model, (x, y) = mlp(6, 8, 3), data()

    def loss():
        moved = torch.zeros_like(x, requires_grad=True)
        for _ in range(2):
            (slope,) = torch.autograd.grad(F.cross_entropy(model(x + moved), y), moved)
            with torch.no_grad():
                moved += 0.01 * slope.sign()
        return F.cross_entropy(model(x + moved.detach()), y)

    return simple(model, loss)


@case()
def lbfgs():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3, line_search_fn="strong_wolfe")

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return Training(model, (optimizer,), lambda: optimizer.step(closure))


@case()
def updates_through_data():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)

    def step():
        for _ in range(2):
            model.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for p in model.parameters():
                p.data -= 0.1 * p.grad
        for p in model.parameters():
            p.data.add_(p.grad.data, alpha=-0.1)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def weight_clipping_and_average():
    model, (x, y) = mlp(6, 8, 3), data()
    average = copy.deepcopy(model).requires_grad_(False)

    def loss():
        with torch.no_grad():
            for p, q in zip(model.parameters(), average.parameters(), strict=True):
                p.clamp_(-0.3, 0.3)
                q.mul_(0.9).add_(p, alpha=0.1)
            teacher = average(x).softmax(-1)
        return F.cross_entropy(model(x), y) + F.kl_div(model(x).log_softmax(-1), teacher, reduction="batchmean")

    return simple(model, loss, average=average)


@case(reason="hx has a graph that was not recorded")
def state_carried_with_its_graph():
    model, x = nn.GRUCell(6, 8), torch.randn(5, 6)
    optimizer, keep = torch.optim.SGD(model.parameters(), 0.0), {"h": torch.zeros(5, 8)}

    def step():
        optimizer.zero_grad()
        keep["h"] = model(x, keep["h"])
        keep["h"].square().mean().backward(retain_graph=True)

    step()
    return Training(model, (optimizer,), step, keep)


@case()
def state_carried_without_its_graph():
    model, x, keep = nn.GRUCell(6, 8), torch.randn(5, 6), {"h": torch.zeros(5, 8)}

    def loss():
        keep["h"] = model(x, keep["h"].detach())
        return keep["h"].square().mean()

    return simple(model, loss)


# -- as people program


class Looping(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x):
        x = x * 3
        while x.norm() > 4:
            x = self.layer(x) * 0.5
        return x if x.sum().item() > 100 else x.abs()


@case(ops=("torch.Tensor.__bool__",))
def data_dependent_control_flow():
    model, (x, _) = Looping(), data()

    def loss():
        value = model(x).square().mean()
        return value * 2 if value.item() < 1e9 else value

    return simple(model, loss)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.register_buffer("seen", torch.zeros(6))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x, mask):
        self.calls += 1
        self.seen.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        h = F.leaky_relu(self.a(x), inplace=True)
        h = h + 0
        h[:, 0] = 1.0
        h.masked_fill_(mask, 0.5)
        row = h[2]
        row.mul_(2.0)
        h.add_(self.b(x)).view(-1)[3:5].zero_()
        out = torch.zeros_like(h)
        out[::2] = h[::2]
        out[1::2] += h[1::2] * self.seen
        out += self.calls
        return out


@case(ops=("torch.Tensor.__setitem__",))
def changes_in_place():
    model, (x, _) = InPlace(), data()
    mask = torch.rand(12, 6) > 0.7
    scratch = torch.empty(12, 6)

    def loss():
        scratch.fill_(math.nan)
        torch.mul(x, 2.0, out=scratch)
        return model(scratch, mask).square().mean()

    return simple(model, loss)


@case()
def views_changed_in_place():
    model, (x, _) = nn.Linear(6, 8), data()

    def loss():
        h = model(x)
        left, right = h.chunk(2, dim=1)
        joined = torch.cat([left, right], 1)
        part = joined[:, 2:6]
        part.mul_(0.5)
        part.transpose(0, 1)[0].add_(3)
        batch = x.clone()
        batch.t()[1] = 0.0
        return joined.square().mean() + model(batch).abs().mean()

    return simple(model, loss)


@case(ops=("torch.Tensor.detach",), warns=("Converting a tensor with requires_grad=True",))
def round_trips():
    model, (x, _) = nn.Linear(6, 4), data()

    def loss():
        h = model(x)
        by_list = torch.tensor(h.tolist())
        by_array = torch.from_numpy(np.tanh(h.detach().numpy()))
        scale = 1.0 + h.mean().item() + float(h[0, 0]) + int(h.argmax())
        return (h * scale + by_list + by_array + h.data).square().mean()

    return simple(model, loss)


@case()
def written_through_numpy():
    model, (x, _) = nn.Linear(6, 4), data()

    def loss():
        batch = x.clone()
        batch.numpy()[:, 0] = 7.0
        return model(batch).square().mean()

    return simple(model, loss)


@case()
def batch_refilled_through_numpy():
    model, batch = nn.Linear(6, 4), torch.zeros(5, 6)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def step():
        optimizer.zero_grad()
        for value in (1.0, 2.0):
            batch.numpy()[:] = value
            model(batch).square().mean().backward()
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def setters():
    model, (x, _) = nn.Linear(6, 4), data()
    other = torch.randn(4, 6)

    def loss():
        first = model(x).mean()
        model.weight.data = model.weight.data * 0.5 + other * 0.1
        moved = (x * 2).detach()
        moved.requires_grad = True
        (slope,) = torch.autograd.grad(model(moved).square().sum(), moved, create_graph=True)
        frozen = model(x)
        frozen.requires_grad_(True)
        return slope.norm() + frozen.square().mean() + first

    return simple(model, loss, torch.optim.SGD(model.parameters(), 0.01))


@case()
def random_layers():
    model, (x, y) = nn.Sequential(nn.Linear(6, 8), nn.RReLU(), nn.AlphaDropout(0.2), nn.Linear(8, 3)), data()

    def loss():
        logits = model(x + torch.bernoulli(torch.full_like(x, 0.5)))
        chosen = F.gumbel_softmax(logits, tau=0.7, hard=True)
        order = torch.randperm(len(x))
        picked = torch.multinomial(logits.detach().softmax(-1), 1)
        noise = torch.empty(3).uniform_(-1, 1) + torch.normal(0.0, 1.0, (3,)) + torch.zeros(3).exponential_()
        return (
            F.cross_entropy(logits[order] + noise, y[order]) + (chosen * logits).sum() + logits.gather(1, picked).mean()
        )

    return simple(model, loss)


@case()
def indexing_and_iterating():
    model, (x, _) = nn.Linear(6, 4), data()
    groups, index = torch.randint(0, 3, (12,)), torch.randint(0, 4, (12, 2))

    def loss():
        h = model(x)
        summed = torch.zeros(3, 4).index_add_(0, groups, h).scatter_add_(1, index[:3], h[:3, :2])
        rows = torch.stack([row.max() * i for i, row in enumerate(h) if row.sum() > 0] or [h.sum()])
        top, place = h.sort(dim=1, descending=True)
        pairs = torch.einsum("ij,kj->ik", h, h).tril(-1)[None, ..., 1:]
        first, *rest = h.unbind(1)
        value = summed[torch.tensor([True, False, True])].sum() + rows.sum() + top[:, 0].mean() + place.float().mean()
        value += torch.cdist(h, summed).min(1).values.mean() + pairs.masked_select(pairs > 0).sum() + sum(rest).mean()
        value /= 2
        value -= first.clone().fill_(1).mean()
        return value

    return simple(model, loss)


@case()
def speech_loss():
    model, x = nn.LSTM(6, 5), torch.randn(9, 2, 6)
    target, lengths = torch.randint(1, 5, (2, 3)), torch.tensor([3, 2])
    return simple(model, lambda: F.ctc_loss(model(x)[0].log_softmax(-1), target, torch.full((2,), 9), lengths))


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, power=3):
        ctx.save_for_backward(x)
        ctx.power = power
        return x**power

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * ctx.power * x ** (ctx.power - 1), None


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, how):
        return x.sin(), x.cos(), how["scale"]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, a, b, _):
        (x,) = ctx.saved_tensors
        return a * x.cos() - b * x.sin(), None


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


cube = Cube.apply


@case()
def custom_functions():
    model, (x, _) = nn.Linear(6, 4), data()

    def loss():
        h = Cube.apply(model(x))
        a, b, scale = Split.apply(h, {"scale": 2.0})
        return ((a + b) * scale).square().mean() + Cube.apply(h, 2).mean() + StraightThrough.apply(h).mean()

    return simple(model, loss)


@case()
def custom_function_by_another_name():
    model, (x, _) = nn.Linear(6, 4), data()
    return simple(model, lambda: cube(model(x)).square().mean())


@case()
def forward_hooks():
    model, (x, y) = mlp(6, 8, 3), data()
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 2.0,))
    model[1].register_forward_hook(lambda m, args, out: out + 0.1 * args[0])
    model.register_forward_pre_hook(lambda m, a, k: ((a[0] + 1,), k), with_kwargs=True)
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case(reason="hook on a module's gradient")
def module_backward_hooks():
    model, (x, y) = mlp(6, 8, 3), data()
    model[1].register_full_backward_hook(lambda m, given, out: (given[0] * 0.5,))
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case(reason="hook on a tensor's gradient")
def gradient_hooks():
    model, (x, y) = mlp(6, 8, 3), data()

    def loss():
        h = model[0](x)
        h.register_hook(lambda g: g * 0.5)
        return F.cross_entropy(model[1:](h), y)

    return simple(model, loss)


@case()
def gradient_hooks_that_only_look():
    model, (x, y) = mlp(6, 8, 3), data()
    seen = []

    def loss():
        h = model(x)
        h.register_hook(lambda g: seen.append(g.norm()))
        return F.cross_entropy(h, y)

    return simple(model, loss)


@case(reason="hook on the gradient of 0.weight")
def parameter_hooks():
    model, (x, y) = mlp(6, 8, 3), data()
    model[0].weight.register_hook(lambda g: g.clamp(-0.01, 0.01))
    return simple(model, lambda: F.cross_entropy(model(x), y))


@case()
def functional_call():
    model, (x, y) = mlp(6, 8, 3), data()

    def loss():
        weights = {name: p * 0.5 for name, p in model.named_parameters()}
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    return simple(model, loss)


@case(reason="torch.func transforms")
def vmap():
    model, x = nn.Linear(6, 4), torch.randn(3, 5, 6)
    return simple(model, lambda: torch.vmap(model)(x).square().mean())


@case(reason="torch.func transforms")
def functional_gradient():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def objective(weights):
        return F.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)

    def step():
        optimizer.zero_grad()
        slopes = torch.func.grad(objective)(dict(model.named_parameters()))
        sum(s.square().sum() for s in slopes.values()).backward()
        optimizer.step()

    return Training(model, (optimizer,), step)


@case()
def generator_of_the_user():
    model, (x, y), g = mlp(6, 8, 3), data(), torch.Generator().manual_seed(3)

    def loss():
        noise = torch.randn(x.shape, generator=g) + torch.empty_like(x).normal_(generator=g)
        order = torch.randperm(len(x), generator=g)
        return F.cross_entropy(model(x[order] + noise), y[order])

    return simple(model, loss, generator=g)


@case()
def seeded_within_the_step():
    model, (x, y) = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.4), nn.Linear(8, 3)), data()

    def loss():
        torch.manual_seed(5)
        with torch.random.fork_rng():
            torch.manual_seed(6)
            noise = torch.rand_like(x)
        return F.cross_entropy(model(x + noise), y)

    return simple(model, loss)


@case()
def default_device_blocks():
    model, (x, y) = mlp(6, 8, 3), data()

    def loss():
        with torch.device("cpu"):
            shift = torch.ones(6)
        with torch.device("meta"):
            shape = model.to("cpu")(x).new_zeros(3).shape, torch.zeros(4).device
        assert str(shape[1]) == "meta"
        return F.cross_entropy(model(x + shift), y)

    return simple(model, loss)


class Counting(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.calls += 1
        return func(*args, **(kwargs or {}))


@case()
def mode_of_the_user():
    model, (x, y), mode = mlp(6, 8, 3), data(), Counting()

    def loss():
        with mode:
            out = model(x)
        return F.cross_entropy(out, y)

    return simple(model, loss, mode=mode)


class Tagged(torch.Tensor):
    """A subclass without behaviour of its own."""


@case()
def tensor_subclass():
    model, (x, y) = mlp(6, 8, 3), data()
    tagged = x.as_subclass(Tagged)
    return simple(model, lambda: F.cross_entropy(model(tagged), y))


@case(reason="has a graph that was not recorded", warns=("`torch.jit.trace",))
def traced_module():
    model, (x, y) = mlp(6, 8, 3), data()
    traced = torch.jit.trace(mlp(6, 6), (x,))
    return simple(nn.ModuleList([model, traced]), lambda: F.cross_entropy(model(traced(x)), y))


@case()
def prepared_batch():
    model, x, y = mlp(6, 8, 3), torch.randint(0, 255, (12, 6), dtype=torch.uint8), torch.randint(0, 3, (12, 1))

    def loss():
        batch = {"x": (x.float() / 255 - 0.5) / 0.2, "y": y.squeeze(1).long()}
        return F.cross_entropy(model(batch["x"]), batch["y"])

    return simple(model, loss)


@case()
def norms_clipped():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)

    def step():
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        scheduler.step()

    return Training(model, (optimizer,), step)


@case()
def gradient_scaler():
    model, (x, y) = mlp(6, 8, 3), data()
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.01), torch.amp.GradScaler("cpu")

    def step():
        optimizer.zero_grad()
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
        scaler.update()

    return Training(model, (optimizer,), step)


# -- transformers


def _language_model(kind, config, **inputs):
    from transformers import set_seed

    set_seed(0)
    model = kind(config).train()
    return simple(model, lambda: model(**inputs).loss)


SMALL = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}


@case()
def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    tokens = torch.randint(0, 40, (2, 7))
    config = LlamaConfig(**SMALL, intermediate_size=24, num_key_value_heads=1, use_cache=False)
    return _language_model(LlamaForCausalLM, config, input_ids=tokens, labels=tokens)


@case()
def bert():
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(**SMALL, intermediate_size=24, num_labels=3)
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3])
    tokens, labels = torch.randint(0, 40, (2, 7)), torch.tensor([0, 2])
    return _language_model(BertForSequenceClassification, config, input_ids=tokens, attention_mask=mask, labels=labels)


@case()
def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=40, d_model=16, d_kv=8, d_ff=24, num_layers=2, num_heads=2, decoder_start_token_id=0, use_cache=False
    )
    tokens = torch.randint(0, 40, (2, 7))
    return _language_model(T5ForConditionalGeneration, config, input_ids=tokens, labels=tokens)


@case(warns=("`gradient_checkpointing_enable` is deprecated",))
def gpt2_checkpointed():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, use_cache=False)
    tokens = torch.randint(0, 40, (2, 7))
    training = _language_model(GPT2LMHeadModel, config, input_ids=tokens, labels=tokens)
    training.model.gradient_checkpointing_enable()
    return training


# -- compiled


DYNAMO = "The .grad attribute of a Tensor that is not a leaf"  # it reads it of every tensor


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(F.gelu(self.norm(self.first(x))))


def _compiled(backend, how):
    torch._dynamo.reset()
    model, (x, y) = Normed(), data()
    model = how(model, backend)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    return simple(model, lambda: F.cross_entropy(model(x), y) + 0.1 * model(x * 2).square().mean(), optimizer)


def _wrapped(model, backend):
    return torch.compile(model, backend=backend)


def _in_place(model, backend):
    model.compile(backend=backend)
    return model


@case(ops=("torch.nn.functional.batch_norm",), warns=(DYNAMO,))
def compiled_eager():
    return _compiled("eager", _wrapped)


@case(ops=("torch.nn.functional.batch_norm",), warns=(DYNAMO,))
def compiled_aot_eager():
    return _compiled("aot_eager", _wrapped)


@case(ops=("torch.nn.functional.batch_norm",), warns=(DYNAMO,))
def compiled_in_place():
    return _compiled("aot_eager", _in_place)


@case(warns=(DYNAMO,))
def compiled_part():
    torch._dynamo.reset()
    compiled = torch.compile(mlp(6, 8, 3), backend="eager")
    model, (x, y) = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), compiled), data()
    return simple(model, lambda: F.cross_entropy(model(x), y))


def compiled_inductor():
    return _compiled("inductor", _wrapped)
