"""Small trainings of which the first step turns non-finite, and near misses that stay healthy.

Each case builds a model and returns it with a function that gives the loss of one step. The guilty line is marked.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from whyloss.core.location import Location
from whyloss.tape.locate import locate
from whyloss.tape.recording import recording

GUILTY = "# guilty"
INF = float("inf")


@dataclass(frozen=True)
class Case:
    """`op`: the torch-level name that must be told; for a leaf its role and name. `line`: where; None: not in code."""

    name: str
    phase: str
    op: str
    aten: str
    build: Callable[[], tuple[nn.Module, Callable[[], torch.Tensor]]]
    line: int | None
    reference: bool
    rows: tuple[int, ...] | None
    optimizer: Callable | None


CASES: list[Case] = []


def case(name, phase="none", op="", *, aten="", reference=False, rows=None, optimizer=None):
    def add(build):
        lines, start = inspect.getsourcelines(build)
        guilty = [start + i for i, text in enumerate(lines) if GUILTY in text]
        assert len(guilty) == (phase in ("forward", "backward")), name
        CASES.append(Case(name, phase, op, aten, build, guilty[0] if guilty else None, reference, rows, optimizer))
        return build

    return add


def located(case: Case) -> Location:
    """What is found in the first step of the case; in the second, where an optimizer spoils the first."""
    torch.manual_seed(0)
    model, step = case.build()
    optimizer = case.optimizer(model.parameters()) if case.optimizer else None
    if optimizer is not None:
        step().backward()
        optimizer.step()
        optimizer.zero_grad()
    with recording(model, optimizer) as recorded:
        step().backward()
    return locate(recorded.tape())


class Net(nn.Module):
    """What every program starts from: two layers and a function of its own at the end."""

    def __init__(self, ending=None, width=4, out=3):
        super().__init__()
        self.fc1 = nn.Linear(width, 8)
        self.fc2 = nn.Linear(8, out)
        self.ending = ending

    def forward(self, x):
        h = self.fc2(torch.tanh(self.fc1(x)))
        return h if self.ending is None else self.ending(h)


def data(rows=6, width=4):
    return torch.randn(rows, width)


# -- the sixteen of the reference


@case("log(0)", "forward", "torch.log", aten="aten::log", reference=True)
def log_of_zero():
    def rate(h):
        return torch.log(torch.relu(h - 100))  # guilty

    model, x = Net(rate), data()
    return model, lambda: model(x).pow(2).mean()


@case("sqrt(0) in backward", "backward", "torch.sqrt", aten="SqrtBackward0", reference=True)
def sqrt_of_zero():
    def size(h):
        return torch.sqrt((h * 0).pow(2).sum(1))  # guilty

    model, x = Net(size), data()
    return model, lambda: model(x).mean()


@case("0/0 in a loss by hand", "forward", "torch.Tensor.div", aten="aten::div", reference=True)
def zero_by_zero():
    model, x, y = Net(), data(), torch.zeros(6, 3)

    def loss_fn(p, t):
        return ((p - t) * t).pow(2).sum() / t.pow(2).sum()  # guilty

    return model, lambda: loss_fn(model(x), y)


@case("x / ‖0‖", "forward", "torch.Tensor.div", aten="aten::div", reference=True)
def normalised_zero():
    def unit(h):
        h = torch.relu(h - 100)
        return h / h.norm(dim=1, keepdim=True)  # guilty

    model, x = Net(unit), data()
    return model, lambda: model(x).pow(2).sum()


@case("softmax over a row of -inf", "forward", "torch.softmax", aten="aten::_softmax", reference=True)
def softmax_of_nothing():
    mask = torch.tensor([[True, True, True]] + [[False, True, False]] * 5)

    def attend(h):
        scores = h.masked_fill(mask, -INF)
        return torch.softmax(scores, dim=-1)  # guilty

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).sum()


@case("softmax with a legal mask", reference=True)
def softmax_with_mask():
    mask = torch.tensor([False, True, False])

    def attend(h):
        return torch.softmax(h.masked_fill(mask, -INF), dim=-1)

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).sum()


@case("half precision overflows", "forward", "torch.Tensor.mul", aten="aten::mul", reference=True)
def half_overflow():
    def energy(h):
        h = (h * 3e4).half()
        return (h * h).float()  # guilty

    model, x = Net(energy), data()
    return model, lambda: model(x).mean()


@case("where(x > 0, log x, 0)", "backward", "torch.log", aten="LogBackward0", reference=True)
def where_log():
    def logs(h):
        h = h * (h > 0)
        return torch.where(h > 0, torch.log(h), 0.0)  # guilty

    model, x = Net(logs), data()
    return model, lambda: model(x).mean()


@case("where(x > 0, sqrt x, x)", "backward", "torch.sqrt", aten="SqrtBackward0", reference=True)
def where_sqrt():
    def root(h):
        h = h * (h > 0)
        return torch.where(h > 0, torch.sqrt(h), h)  # guilty

    model, x = Net(root), data()
    return model, lambda: model(x).mean()


@case("norm at 0, its gradient masked", reference=True)
def masked_norm():
    keep = torch.tensor([1, 0, 1, 1, 1, 1]).bool()

    def size(h):
        h = torch.where(keep[:, None], h, torch.zeros_like(h))
        return h.norm(dim=1)

    model, x = Net(size), data()
    return model, lambda: model(x)[keep].mean()


@case("std at 0, its gradient masked", reference=True)
def masked_std():
    keep = torch.tensor([1, 0, 1, 1, 1, 1]).bool()

    def spread(h):
        return h.masked_fill(~keep[:, None], 0.0).std(dim=1)

    model, x = Net(spread), data()
    return model, lambda: model(x)[keep].mean()


@case("acos(1) in backward", "backward", "torch.acos", aten="AcosBackward0", reference=True)
def acos_of_one():
    def angle(h):
        c = h * 0 + 1
        return torch.acos(c)  # guilty

    model, x = Net(angle), data()
    return model, lambda: model(x).mean()


class BadScale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g / 0


@case("custom Function divides by 0 in backward", "backward", "BadScale", aten="BadScaleBackward", reference=True)
def custom_function():
    def scaled(h):
        return BadScale.apply(h)  # guilty

    model, x = Net(scaled), data()
    return model, lambda: model(x).mean()


@case("exp overflows", "forward", "torch.exp", aten="aten::exp", reference=True)
def exp_overflow():
    def positive(h):
        return torch.exp(h * 1000)  # guilty

    model, x = Net(positive), data()
    return model, lambda: model(x).mean()


@case("pow(0.5) at 0 in backward", "backward", "torch.Tensor.pow", aten="PowBackward0", reference=True)
def pow_at_zero():
    def root(h):
        h = h * (h > 0)
        return h.pow(0.5)  # guilty

    model, x = Net(root), data()
    return model, lambda: model(x).mean()


@case("in-place division by 0", "forward", "torch.Tensor.div_", aten="aten::div_", reference=True)
def inplace_division():
    scale = torch.tensor([1.0, 0.0, 2.0])

    def rescaled(h):
        h = h + 1
        h.div_(scale)  # guilty
        return h

    model, x = Net(rescaled), data()
    return model, lambda: model(x).mean()


# -- losses


@case("ignore_index everywhere", "forward", "torch.nn.functional.cross_entropy", aten="aten::nll_loss_forward")
def all_ignored():
    model, x, y = Net(), data(), torch.full((6,), -100)
    return model, lambda: F.cross_entropy(model(x), y)  # guilty


@case("log of a softmax that underflows", "forward", "torch.log", aten="aten::log")
def log_softmax_by_hand():
    model, x, y = Net(lambda h: h * 1000), data(), torch.tensor([0, 1, 2, 0, 1, 2])

    def nll(logits):
        p = torch.softmax(logits, dim=1)
        return -torch.log(p)[range(6), y].mean()  # guilty

    return model, lambda: nll(model(x))


@case("division by a mask that is empty", "forward", "torch.Tensor.div", aten="aten::div")
def empty_mask():
    model, x, y, mask = Net(), data(), torch.randn(6, 3), torch.zeros(6, 3)

    def masked_mse(p):
        return ((p - y) ** 2 * mask).sum() / mask.sum()  # guilty

    return model, lambda: masked_mse(model(x))


@case("mean of nothing selected", "forward", "torch.Tensor.mean", aten="aten::mean")
def empty_mean():
    model, x, keep = Net(), data(), torch.zeros(6, dtype=torch.bool)
    return model, lambda: model(x)[keep].mean()  # guilty


@case("KL of a Gaussian, exp(logvar) overflows", "forward", "torch.Tensor.exp", aten="aten::exp")
def vae_kl():
    class VAE(nn.Module):
        def __init__(self):
            super().__init__()
            self.mu, self.logvar, self.decoder = nn.Linear(4, 2), nn.Linear(4, 2), nn.Linear(2, 4)

        def forward(self, x):
            mu, logvar = self.mu(x), self.logvar(x)
            z = mu + torch.exp(0.5 * logvar.clamp(max=10)) * torch.randn_like(mu)
            return self.decoder(z), mu, logvar

    model, x = VAE(), data() * 1000

    def loss_fn(out):
        recon, mu, logvar = out
        kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())  # guilty
        return F.mse_loss(recon, x) + kl

    return model, lambda: loss_fn(model(x))


@case("focal loss, log(1 - p)", "forward", "torch.log", aten="aten::log")
def focal():
    model, x, y = Net(lambda h: torch.sigmoid(h * 1000)), data(), torch.randint(0, 2, (6, 3)).float()

    def focal_loss(p, gamma=2.0):
        pos = -y * (1 - p) ** gamma * torch.log(p + 1e-8)
        neg = -(1 - y) * p**gamma * torch.log(1 - p)  # guilty
        return (pos + neg).mean()

    return model, lambda: focal_loss(model(x))


@case("binary cross-entropy by hand on 0 and 1", "forward", "torch.log", aten="aten::log")
def bce_by_hand():
    model, x, y = Net(lambda h: torch.sigmoid(h * 1e4)), data(), torch.ones(6, 3)

    def bce(p):
        return -(y * p.log().clamp(min=-100) + (1 - y) * torch.log(1 - p)).mean()  # guilty

    return model, lambda: bce(model(x))


@case("GAN loss, log(1 - D)", "forward", "torch.log", aten="aten::log")
def gan_loss():
    class GAN(nn.Module):
        def __init__(self):
            super().__init__()
            self.generator, self.critic = nn.Linear(2, 4), nn.Linear(4, 1)

        def forward(self, z):
            return torch.sigmoid(1e3 * self.critic(self.generator(z)).abs())

    model, z = GAN(), torch.randn(6, 2)

    def generator_loss(d):
        return torch.log(1 - d).mean()  # guilty

    return model, lambda: generator_loss(model(z))


@case("masked class is the target", "forward", "torch.Tensor.masked_fill", aten="aten::masked_fill")
def masked_target():
    banned = torch.tensor([False, True, False])
    y = torch.tensor([0, 1, 2, 0, 0, 2])

    def legal(h):
        return h.masked_fill(banned, -INF)  # guilty

    model, x = Net(legal), data()
    return model, lambda: F.cross_entropy(model(x), y)


@case("entropy of masked logits, 0 · -inf", "forward", "torch.Tensor.mul", aten="aten::mul")
def masked_entropy():
    banned = torch.tensor([False, True, False])
    model, x = Net(lambda h: h.masked_fill(banned, -INF)), data()

    def entropy(logits):
        logp = F.log_softmax(logits, dim=-1)
        return (logp.exp() * logp).sum(-1).mean()  # guilty

    return model, lambda: entropy(model(x))


@case("mask multiplied by -inf", "forward", "torch.Tensor.mul", aten="aten::mul")
def multiplied_mask():
    def attend(h):
        mask = torch.tensor([0.0, 1.0, 0.0]) * -INF  # guilty
        return torch.softmax(h + mask, dim=-1)

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).sum()


@case("InfoNCE, temperature underflows in half", "forward", "torch.Tensor.div", aten="aten::div")
def infonce():
    def compare(h):
        z = F.normalize(h, dim=1).half()
        return z @ z.T / torch.tensor(1e-9, dtype=torch.float16)  # guilty

    model, x = Net(compare), data()
    return model, lambda: F.cross_entropy(model(x).float(), torch.arange(6))


@case("Poisson likelihood, exp by hand", "forward", "torch.exp", aten="aten::exp")
def poisson():
    model, x, y = Net(), data() * 1e6, torch.ones(6, 3)
    model.fc2.weight.data.mul_(1e3)

    def nll(log_rate):
        return (torch.exp(log_rate) - y * log_rate).mean()  # guilty

    return model, lambda: nll(model(x))


@case("relative error against a zero target", "forward", "torch.Tensor.div", aten="aten::div")
def relative_error():
    model, x, y = Net(), data(), torch.randn(6, 3)
    y[2, 1] = 0
    return model, lambda: ((model(x) - y) / y).abs().mean()  # guilty


@case("NLL of a variance that is 0", "forward", "torch.Tensor.div", aten="aten::div")
def zero_variance():
    model, x, y = Net(out=2), data(), torch.randn(6)

    def gaussian(out):
        mean, var = out[:, 0], torch.relu(out[:, 1] - 10)
        return ((mean - y) ** 2 / var + torch.log(var + 1)).mean()  # guilty

    return model, lambda: gaussian(model(x))


@case("contrastive distance of identical points", "backward", "torch.sqrt", aten="SqrtBackward0")
def contrastive():
    model, x = Net(), data()

    def loss_fn(h):
        return (1 - torch.sqrt(((h - h) ** 2).sum(1))).clamp(min=0).mean()  # guilty

    return model, lambda: loss_fn(model(x))


@case("CTC of a target that is too long", "forward", "torch.nn.functional.ctc_loss", aten="aten::_ctc_loss")
def ctc():
    model, x = Net(), data(rows=4)

    def loss_fn(logits):
        logp = logits.log_softmax(-1)[:, None]
        return F.ctc_loss(logp, torch.tensor([[1, 2, 1, 2, 1, 2]]), torch.tensor([4]), torch.tensor([6]))  # guilty

    return model, lambda: loss_fn(model(x))


# -- layers


@case("softplus by hand", "forward", "torch.exp", aten="aten::exp")
def softplus_by_hand():
    def softplus(h):
        return torch.log(1 + torch.exp(h * 1000))  # guilty

    model, x = Net(softplus), data()
    return model, lambda: model(x).mean()


@case("cosine of a zero vector by hand", "forward", "torch.Tensor.div", aten="aten::div")
def cosine_by_hand():
    def cosine(h):
        a, b = torch.relu(h), torch.relu(-h - 100)
        return (a * b).sum(1) / (a.norm(dim=1) * b.norm(dim=1))  # guilty

    model, x = Net(cosine), data()
    return model, lambda: model(x).mean()


@case("cosine_similarity with eps=0", "forward", "torch.nn.functional.cosine_similarity", aten="aten::div")
def cosine_without_eps():
    def cosine(h):
        return F.cosine_similarity(h, torch.zeros_like(h), dim=1, eps=0)  # guilty

    model, x = Net(cosine), data()
    return model, lambda: model(x).mean()


@case("std of one element", "forward", "torch.Tensor.std", aten="aten::std")
def std_of_one():
    def standardised(h):
        return (h - h.mean(0)) / (h.std(0) + 1e-5)  # guilty

    model, x = Net(standardised), data(rows=1)
    return model, lambda: model(x).pow(2).mean()


@case("asin at ±1 in backward", "backward", "torch.asin", aten="AsinBackward0")
def asin_of_one():
    def angle(h):
        return torch.asin(torch.tanh(h * 100))  # guilty

    model, x = Net(angle), data()
    return model, lambda: model(x).mean()


@case("fractional power of a negative base", "forward", "torch.pow", aten="aten::pow")
def negative_base():
    def gamma(h):
        return torch.pow(h, 1.5)  # guilty

    model, x = Net(gamma), data()
    return model, lambda: model(x).mean()


@case("cumprod overflows", "forward", "torch.cumprod", aten="aten::cumprod")
def cumprod_overflow():
    def chain(h):
        return torch.cumprod(h.abs() * 1e30 + 1, dim=1)  # guilty

    model, x = Net(chain), data()
    return model, lambda: model(x).mean()


@case("sum in half overflows", "forward", "torch.Tensor.sum", aten="aten::sum")
def half_sum():
    def total(h):
        h = (h.abs() + 100).half().repeat(1, 500)
        return h.sum(1)  # guilty

    model, x = Net(total), data()
    return model, lambda: model(x).float().mean()


@case("square in bfloat16 overflows", "forward", "torch.Tensor.pow", aten="aten::pow")
def bfloat_square():
    def energy(h):
        h = (h * 1e25).bfloat16()
        return h.pow(2).sum(1)  # guilty

    model, x = Net(energy), data()
    return model, lambda: model(x).float().mean()


@case("fp16 overflow under autocast", "forward", "torch.nn.functional.linear", aten="aten::addmm")
def autocast_overflow():
    model, x = Net(), data()
    model.fc2.weight.data.fill_(6e4)
    model.fc1.bias.data.fill_(10.0)

    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = model

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.float16):
                h = torch.tanh(self.net.fc1(x))
                return self.net.fc2(h)  # guilty

    wrapped = Wrapped()
    return wrapped, lambda: wrapped(x).float().pow(2).mean()


@case("cast to half overflows", "forward", "torch.Tensor.half", aten="aten::_to_copy")
def cast_overflow():
    def store(h):
        h = h * 1e6
        return h.half()  # guilty

    model, x = Net(store), data()
    return model, lambda: model(x).float().mean()


@case("layer norm by hand divides by a zero std", "forward", "torch.Tensor.div", aten="aten::div")
def layer_norm_by_hand():
    class Norm(nn.Module):
        def forward(self, h):
            mean, std = h.mean(-1, keepdim=True), h.std(-1, keepdim=True)
            return (h - mean) / std  # guilty

    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), Norm(), nn.Linear(8, 2)), data()
    model[0].bias.data.fill_(-100.0)
    return model, lambda: model(x).pow(2).mean()


@case("RMSNorm without eps in half, its square underflows", "forward", "torch.rsqrt", aten="aten::rsqrt")
def rms_norm():
    class RMSNorm(nn.Module):
        def forward(self, h):
            ms = h.pow(2).mean(-1, keepdim=True)
            return h * torch.rsqrt(ms)  # guilty

    model, x = nn.Sequential(nn.Linear(4, 8), RMSNorm(), nn.Linear(8, 2)).half(), (data() * 1e-4).half()
    model[0].bias.data.zero_()
    return model, lambda: model(x).float().pow(2).sum()


@case("RMSNorm of zeros", "forward", "torch.rsqrt", aten="aten::rsqrt")
def rms_norm_of_zeros():
    def rms(h):
        h = h * 0
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True))  # guilty

    model, x = Net(rms), data()
    return model, lambda: model(x).pow(2).mean()


@case("distance matrix with its diagonal", "backward", "torch.sqrt", aten="SqrtBackward0")
def distance_matrix():
    def distances(h):
        return torch.sqrt(((h[:, None] - h[None]) ** 2).sum(-1))  # guilty

    model, x = Net(distances), data()
    return model, lambda: model(x).mean()


@case("softmax at temperature 0", "forward", "torch.Tensor.div", aten="aten::div")
def zero_temperature():
    def sharpen(h, temperature=0.0):
        return torch.softmax(h / temperature, dim=-1)  # guilty

    model, x = Net(sharpen), data()
    return model, lambda: model(x).pow(2).mean()


@case("linalg.norm at 0 in another norm", "forward", "torch.Tensor.div", aten="aten::div")
def linalg_norm():
    def direction(h):
        h = torch.relu(h - 100)
        return h / torch.linalg.norm(h, dim=-1, keepdim=True)  # guilty

    model, x = Net(direction), data()
    return model, lambda: (model(x) - 1).pow(2).mean()


@case("weight norm of a zero direction", "forward", "torch.Tensor.div", aten="aten::div")
def weight_norm():
    class WeightNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.v, self.g = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.ones(3, 1))
            self.v.data[1] = 0

        def forward(self, x):
            w = self.g * self.v / self.v.norm(dim=1, keepdim=True)  # guilty
            return x @ w.T

    model, x = WeightNorm(), data()
    return model, lambda: model(x).pow(2).mean()


@case("attention by hand, subtracts the maximum of -inf", "forward", "torch.Tensor.sub", aten="aten::sub")
def softmax_by_hand():
    mask = torch.tensor([[True] * 3] + [[False] * 3] * 5)

    def attend(h):
        s = h.masked_fill(mask, -INF)
        e = torch.exp(s - s.max(-1, keepdim=True).values)  # guilty
        return e / e.sum(-1, keepdim=True)

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).mean()


@case(
    "nn.MultiheadAttention, a row all padding",
    "forward",
    "torch.nn.functional.multi_head_attention_forward",
    aten="aten::_softmax",
)
def padded_row():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, padding):
            return self.attention(x, x, x, key_padding_mask=padding)[0]  # guilty

    model, x = Block(), torch.randn(2, 3, 8)
    padding = torch.tensor([[False, False, True], [True, True, True]])
    return model, lambda: model(x, padding).pow(2).mean()


@case("logit of a saturated sigmoid", "forward", "torch.logit", aten="aten::logit")
def logit_of_one():
    def back(h):
        return torch.logit(torch.sigmoid(h.abs() * 1000 + 100))  # guilty

    model, x = Net(back), data()
    return model, lambda: model(x).mean()


@case("reciprocal of a dead unit under where", "backward", "torch.reciprocal", aten="ReciprocalBackward0")
def where_reciprocal():
    def inverse(h):
        h = h * (h > 0)
        return torch.where(h > 0, torch.reciprocal(h), torch.zeros_like(h))  # guilty

    model, x = Net(inverse), data()
    return model, lambda: model(x).clamp(max=10).mean()


@case("exp overflows behind a clamp", "backward", "torch.exp", aten="ExpBackward0")
def exp_behind_clamp():
    def positive(h):
        return torch.exp(h * 1000).clamp(max=10)  # guilty

    model, x = Net(positive), data()
    return model, lambda: model(x).mean()


@case("discarded log(0) beside a real 0/0", "forward", "torch.Tensor.div", aten="aten::div")
def two_suspects():
    def both(h):
        h = torch.relu(h.detach() * 0 + torch.tensor([1.0, 0.0, 2.0])) + 0 * h
        logs = torch.where(h > 0.5, torch.log(h.detach()), 0.0)
        ratio = h / h  # guilty
        return logs + ratio

    model, x = Net(both), data()
    return model, lambda: model(x).mean()


@case("deliberate mask beside an overflow", "forward", "torch.Tensor.mul", aten="aten::mul")
def mask_beside_overflow():
    causal = torch.full((6, 6), -INF).triu(1)

    def attend(h):
        h = (h + 5).half()
        scores = h @ h.T + causal.half()
        scores = scores * 2e4  # guilty
        return torch.softmax(scores.float(), dim=-1)

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).mean()


@case("dropout-dependent 0/0", "forward", "torch.Tensor.div", aten="aten::div")
def dropout_division():
    def shares(h):
        h = F.dropout(h.abs() + 1, p=0.9)
        return h / h.sum(1, keepdim=True)  # guilty

    model, x = Net(shares), data(rows=32)
    return model, lambda: model(x).pow(2).mean()


@case("gradient of 1/x overflows where 1/x does not", "backward", "torch.reciprocal", aten="ReciprocalBackward0")
def steep_reciprocal():
    def inverse(h):
        h = h * 1e-3 + 1e-25 - h * 1e-3
        return torch.reciprocal(h.abs() + 1e-25) * 1e-25  # guilty

    model, x = Net(inverse), data()
    model.fc2.weight.data.zero_()
    model.fc2.bias.data.zero_()
    return model, lambda: model(x).mean()


# -- as they are met in practice


@case("padding rows see nothing and are multiplied by 0", "forward", "torch.Tensor.softmax", aten="aten::_softmax")
def padded_queries():
    length = torch.tensor([3, 0])
    valid = torch.arange(4) < length[:, None]

    class Pool(nn.Module):
        def __init__(self):
            super().__init__()
            self.score, self.fc = nn.Linear(8, 1), nn.Linear(8, 1)

        def forward(self, x):
            scores = self.score(x).squeeze(-1).masked_fill(~valid, -INF)
            weights = scores.softmax(dim=-1)  # guilty
            return self.fc((weights[..., None] * x).sum(1)).squeeze(-1) * (length > 0)

    model, x = Pool(), torch.randn(2, 4, 8)
    return model, lambda: model(x).pow(2).mean()


@case("weights projected by a zero norm inside the step", "forward", "torch.Tensor.div_", aten="aten::div_")
def projected_weights():
    class Unit(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 3)
            self.fc.weight.data[1] = 0

        def forward(self, x):
            with torch.no_grad():
                self.fc.weight.div_(self.fc.weight.norm(dim=1, keepdim=True))  # guilty
            return self.fc(x)

    model, x = Unit(), data()
    return model, lambda: model(x).pow(2).mean()


@case("eigenvectors of equal eigenvalues", "backward", "torch.linalg.eigh", aten="LinalgEighBackward0")
def degenerate_eigh():
    def spectrum(h):
        c = h.T @ h * 0 + torch.eye(3)
        return torch.linalg.eigh(c).eigenvectors  # guilty

    model, x = Net(spectrum), data()
    return model, lambda: (model(x) * torch.randn(3, 3)).sum()


@case("Normal with a scale of 0", "forward", "torch.Tensor.log", aten="aten::log")
def normal_scale():
    model, x, y = Net(out=2), data(), torch.randn(6)

    def nll(out):
        scale = torch.relu(out[:, 1] - 100)
        return -torch.distributions.Normal(out[:, 0], scale, validate_args=False).log_prob(y).mean()  # guilty

    return model, lambda: nll(model(x))


@case("label smoothing over masked classes", "forward", "torch.Tensor.masked_fill", aten="aten::masked_fill")
def smoothed_mask():
    banned = torch.tensor([False, True, False])

    def legal(h):
        return h.masked_fill(banned, -INF)  # guilty

    model, x = Net(legal), data()
    return model, lambda: F.cross_entropy(model(x), torch.tensor([0, 2, 2, 0, 0, 2]), label_smoothing=0.1)


@case("a loss weight that is NaN", "forward", "torch.Tensor.mul", aten="aten::mul")
def nan_weight():
    model, x, weight = Net(), data(), float("nan")
    return model, lambda: model(x).pow(2).mean() * weight  # guilty


@case("online softmax over a chunk that is masked", "forward", "torch.Tensor.sub", aten="aten::sub")
def online_softmax():
    mask = torch.tensor([True, True, False])

    def attend(h):
        top, total = torch.full((6, 1), -INF), torch.zeros(6, 1)
        for chunk in h.masked_fill(mask, -INF).split(1, dim=1):
            best = torch.maximum(top, chunk)
            total = total * torch.exp(top - best) + torch.exp(chunk - best)  # guilty
            top = best
        return torch.log(total) + top

    model, x = Net(attend), data()
    return model, lambda: model(x).mean()


@case("NaN written into a slice", "forward", "torch.Tensor.__setitem__", aten="")
def nan_written():
    def damaged(h):
        h = h.clone()
        h[0, 1] = float("nan")  # guilty
        return h

    model, x = Net(damaged), data()
    return model, lambda: model(x).mean()


@case("nan_to_num hides it forward, not backward", "backward", "torch.Tensor.div", aten="DivBackward0")
def hidden_nan():
    def shares(h):
        h = h * 0
        return torch.nan_to_num(h / h.sum(1, keepdim=True))  # guilty

    model, x = Net(shares), data()
    return model, lambda: model(x).mean()


@case("scores overflow in a block of half attention", "forward", "torch.Tensor.matmul", aten="aten::mm")
def half_attention():
    causal = torch.ones(6, 6).triu(1).bool()

    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q, self.k, self.v = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = self.q(x), self.k(x), self.v(x)
            scores = q @ k.T  # guilty
            weights = torch.softmax(scores.masked_fill(causal, -INF), dim=-1)
            return weights @ v

    model, x = nn.Sequential(Attention(), nn.LayerNorm(8), Attention()).half(), torch.randn(6, 8).half()
    model[2].q.weight.data.mul_(1e3)
    model[2].k.weight.data.mul_(1e3)
    return model, lambda: model(x).float().pow(2).mean()


@case("a NaN row of an embedding", "leaf", "parameter 0.weight", rows=(7,))
def nan_embedding():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    model[0].weight.data[7] = float("nan")
    return model, lambda: model(torch.tensor([1, 7, 3])).pow(2).mean()


@case("healthy: a NaN row of an embedding that is not looked up")
def unused_embedding():
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 2))
    model[0].weight.data[7] = float("nan")
    return model, lambda: model(torch.tensor([1, 2, 3])).pow(2).mean()


@case("running variance of a batch norm is NaN", "leaf", "buffer 1.running_var")
def nan_running():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)), data()
    model[1].running_var.fill_(float("nan"))
    model[1].eval()
    return model, lambda: model(x).pow(2).mean()


@case("NaN in the data, running statistics already spoilt", "leaf", "input input", rows=(0,))
def spoilt_statistics():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 1)), data()
    model[1].running_mean.fill_(float("nan"))
    x[0] = float("nan")
    return model, lambda: model(x).pow(2).mean()


@case("log(0) before a batch norm whose running statistics are spoilt", "forward", "torch.log", aten="aten::log")
def log_before_norm():
    class Logs(nn.Module):
        def forward(self, h):
            return torch.log(torch.relu(h))  # guilty

    model, x = nn.Sequential(nn.Linear(4, 8), Logs(), nn.BatchNorm1d(8), nn.Linear(8, 1)), data()
    model[2].running_var.fill_(float("nan"))
    return model, lambda: model(x).pow(2).mean()


@case("conv in half overflows", "forward", "torch.nn.functional.conv2d", aten="aten::convolution")
def half_conv():
    class Stem(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.conv.weight.data.fill_(100.0)

        def forward(self, x):
            return F.conv2d(x, self.conv.weight)  # guilty

    model, x = Stem().half(), torch.full((2, 3, 8, 8), 255.0).half()
    return model, lambda: model(x).float().mean()


@case("square root of a variance by E[x²] − E[x]²", "forward", "torch.sqrt", aten="aten::sqrt")
def cancelled_variance():
    def spread(h):
        h = h * 0 + 101.11
        variance = (h * h).mean(1) - h.mean(1) ** 2
        return torch.sqrt(variance)  # guilty

    model, x = Net(spread), data()
    return model, lambda: model(x).mean()


@case("quaternion to angle, acos beyond 1", "forward", "torch.acos", aten="aten::acos")
def acos_beyond():
    def angle(h):
        unit = F.normalize(h, dim=1) * (1 + 1e-6)
        return torch.acos((unit * unit).sum(1))  # guilty

    model, x = Net(angle), data()
    return model, lambda: model(x).mean()


# -- leaves


@case("NaN in a row of the data", "leaf", "input x", rows=(3,))
def nan_in_data():
    model, x = Net(), data()
    x[3, 1] = float("nan")
    return model, lambda: model(x).pow(2).mean()


@case("inf in the data", "leaf", "input x", rows=(0, 4))
def inf_in_data():
    model, x = Net(), data()
    x[0, 1], x[4, 2] = INF, -INF
    model.ending = lambda h: h * torch.relu(x).sum(1, keepdim=True)
    return model, lambda: model(x).pow(2).mean()


@case("-inf in the data, log features", "leaf", "input input", rows=(2,))
def log_features():
    model, x = nn.Linear(4, 3), torch.log(torch.tensor([[1, 2, 3, 4], [2, 2, 2, 3], [1, 0, 1, 0], [5, 1, 1, 1.0]]))
    return model, lambda: F.cross_entropy(F.layer_norm(model(x), (3,)), torch.arange(4) % 3)


@case("NaN in the target", "leaf", "target ", rows=(5,))
def nan_in_target():
    model, x, y = Net(), data(), torch.randn(6, 3)
    y[5, 0] = float("nan")
    return model, lambda: F.mse_loss(model(x), y)


@case("NaN in a buffer", "leaf", "buffer mean")
def nan_in_buffer():
    model, x = Net(), data()
    model.register_buffer("mean", torch.tensor([0.0, float("nan"), 0.0]))
    model.ending = lambda h: h - model.mean
    return model, lambda: model(x).pow(2).mean()


@case(
    "NaN learning rate, at the next step",
    "leaf",
    "parameter fc1.weight",
    optimizer=lambda p: torch.optim.SGD(p, float("nan")),
)
def nan_rate():
    model, x = Net(), data()
    return model, lambda: model(x).pow(2).mean()


@case(
    "Adam with eps=0 and a zero gradient, at the next step",
    "leaf",
    "parameter fc1.weight",
    optimizer=lambda p: torch.optim.Adam(p, eps=0.0),
)
def adam_without_eps():
    model, x = Net(), data()
    model.fc2.weight.data.zero_()
    return model, lambda: model(x).pow(2).mean()


@case(
    "learning rate so large that weights overflow",
    "leaf",
    "parameter fc1.weight",
    optimizer=lambda p: torch.optim.SGD(p, 3e38),
)
def huge_rate():
    model, x = Net(lambda h: h * 1e3), data()
    return model, lambda: model(x).pow(2).mean()


@case("additive mask hides every key", "forward", "torch.softmax", aten="aten::_softmax")
def additive_mask_all():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x, mask):
            q = self.q(x)
            return torch.softmax(q @ x.T + mask, dim=-1) @ x  # guilty

    mask = torch.zeros(6, 6)
    mask[2] = -INF
    model, x = Attention(), data()
    return model, lambda: model(x, mask).pow(2).mean()


@case("bias and mask in one input hide every key", "forward", "torch.softmax", aten="aten::_softmax")
def biased_mask_all():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x, bias):
            return torch.softmax(self.q(x) @ x.T + bias, dim=-1) @ x  # guilty

    bias = -(torch.arange(6)[:, None] - torch.arange(6)).abs().float()
    bias[2] = -INF
    model, x = Attention(), data()
    return model, lambda: model(x, bias).pow(2).mean()


@case("gradient norm beyond float32", "overflow", "parameter fc2.bias")
def gradient_overflow():
    model, x = Net(), data()
    return model, lambda: (model(x) * 1e25).mean()


@case("gradient norm beyond half", "overflow", "parameter 0.weight")
def half_gradient_overflow():
    model, x = nn.Sequential(nn.Linear(64, 32)).half(), torch.ones(6, 64).half() * 100
    return model, lambda: (model(x) * 4).sum(dtype=torch.float32) * 10


# -- healthy


@case("healthy: plain classification")
def plain():
    model, x = Net(), data()
    return model, lambda: F.cross_entropy(model(x), torch.tensor([0, 1, 2, 0, 1, 2]))


@case("healthy: additive mask as an input")
def additive_input():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)

        def forward(self, x, mask):
            return torch.softmax(self.q(x) @ x.T + mask, dim=-1) @ x

    model, x, mask = Attention(), data(), torch.full((6, 6), -INF).triu(1)
    return model, lambda: model(x, mask).pow(2).mean()


@case("healthy: additive mask as a buffer, log-softmax")
def additive_buffer():
    model, x = Net(), data()
    model.register_buffer("mask", torch.tensor([0.0, -INF, 0.0]))
    model.ending = lambda h: h + model.mask
    return model, lambda: F.cross_entropy(model(x), torch.tensor([0, 2, 2, 0, 0, 2]))


@case("healthy: where discards log(0), gradient guarded")
def double_where():
    def logs(h):
        h = torch.relu(h)
        safe = torch.where(h > 0, h, 1.0)
        return torch.where(h > 0, torch.log(safe), 0.0) + torch.where(h > 0, torch.log(h.detach()), 0.0)

    model, x = Net(logs), data()
    return model, lambda: model(x).mean()


@case("healthy: scaled_dot_product_attention with a mask")
def sdpa():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x, mask):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            one = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return one + F.scaled_dot_product_attention(q, k, v, attn_mask=torch.full((5, 5), -INF).triu(1))

    model, x, mask = Attention(), torch.randn(2, 5, 8), torch.ones(5, 5).tril().bool()
    return model, lambda: model(x, mask).pow(2).mean()


@case("healthy: nn.MultiheadAttention with masks")
def mha():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

        def forward(self, x, padding):
            causal = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
            out, _ = self.attention(
                x, x, x, key_padding_mask=torch.zeros(2, 3).masked_fill(padding, -INF), attn_mask=causal
            )
            return out + self.attention(x, x, x, attn_mask=causal, need_weights=False)[0]

    model, x, padding = Block(), torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, True, True]])
    return model, lambda: model(x, padding).pow(2).mean()


@case("healthy: encoder layer with padding")
def encoder():
    model = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    x, padding = torch.randn(2, 3, 8), torch.tensor([[False, False, True], [False, True, True]])
    return model, lambda: model(x, src_key_padding_mask=padding)[~padding].pow(2).mean()


@case("healthy: infinities met by clamp, min and max")
def clamped():
    def bounded(h):
        best = torch.full_like(h, INF)
        best = torch.minimum(best, h).clamp(min=-INF, max=5)
        return torch.maximum(best, torch.full_like(h, -INF))

    model, x = Net(bounded), data()
    return model, lambda: model(x).pow(2).mean()


@case("healthy: argmax over masked logits")
def argmax():
    model, x = Net(), data()
    banned = torch.tensor([False, True, False])

    def loss_fn(logits):
        choice = logits.masked_fill(banned, -INF).argmax(-1)
        return F.cross_entropy(logits, choice)

    return model, lambda: loss_fn(model(x))


@case("healthy: logsumexp with -inf entries")
def logsumexp():
    def total(h):
        return torch.logsumexp(torch.cat([h, torch.full((len(h), 1), -INF)], dim=1), dim=1)

    model, x = Net(total), data()
    return model, lambda: model(x).mean()


@case("healthy: log of a 0/1 mask added to scores")
def log_mask():
    allowed = torch.ones(6, 3).index_fill(1, torch.tensor(1), 0)

    def attend(h):
        return torch.softmax(h + allowed.log(), dim=-1)

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).mean()


@case("healthy: masked assignment of -inf")
def assigned():
    def attend(h):
        scores = h.clone()
        scores[:, 1] = -INF
        return torch.softmax(scores, dim=-1)

    model, x = Net(attend), data()
    return model, lambda: model(x).pow(2).mean()


@case("healthy: top-k filtering of logits")
def topk():
    def filtered(h):
        return h.masked_fill(h < h.topk(2).values[:, -1:], -INF).softmax(-1)

    model, x = Net(filtered), data()
    return model, lambda: (model(x) + 1e-3).log().mean()


@case("healthy: missing data marked by NaN and left out")
def nan_marked():
    model, x, y = Net(), data(), torch.randn(6, 3)
    y[2, 1] = float("nan")

    def loss_fn(p):
        known = ~y.isnan()
        return F.mse_loss(p[known], y[known])

    return model, lambda: loss_fn(model(x))


@case("healthy: NaN in a parameter that nothing uses")
def unused_parameter():
    model, x = Net(), data()
    model.register_parameter("spare", nn.Parameter(torch.tensor([float("nan"), 1.0])))
    model.ending = lambda h: h + model.spare[1:].sum()
    return model, lambda: model(x).pow(2).mean()


@case("healthy: LSTM and batch norm")
def lstm():
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.norm, self.fc = nn.LSTM(4, 8, batch_first=True), nn.BatchNorm1d(8), nn.Linear(8, 2)

        def forward(self, x):
            return self.fc(F.dropout(self.norm(self.lstm(x)[0][:, -1]), 0.5))

    model, x = Reader(), torch.randn(6, 5, 4)
    return model, lambda: model(x).pow(2).mean()


@case("healthy: relu takes away the NaN gradient of a log")
def relu_launders():
    def logs(h):
        h = torch.relu(h)
        return torch.where(h > 0, torch.log(h), 0.0)

    model, x = Net(logs), data()
    return model, lambda: model(x).mean()


@case("healthy: clamp takes away the infinite gradient of acos")
def clamp_launders():
    model, x = Net(lambda h: torch.acos((h * 100).clamp(-1, 1))), data()
    return model, lambda: model(x).mean()


@case("healthy: atan2 at the origin is guarded by torch")
def atan2_origin():
    model, x = Net(lambda h: torch.atan2(h[:, 0] * 0, h[:, 1] * 0)), data()
    return model, lambda: model(x).mean()


@case("healthy: a square overflows in half, its rsqrt is 0")
def hidden_overflow():
    def rms(h):
        h = (h * 1e4).half()
        return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True))

    model, x = Net(rms), data()
    return model, lambda: model(x).float().pow(2).sum()


@case("healthy: sdpa with a row that may see nothing")
def sdpa_empty_row():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.qkv = nn.Linear(8, 24)

        def forward(self, x, mask):
            q, k, v = self.qkv(x).chunk(3, dim=-1)
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    model, x, mask = Attention(), torch.randn(2, 5, 8), torch.ones(5, 5).tril(-1).bool()
    return model, lambda: model(x, mask).pow(2).mean()
