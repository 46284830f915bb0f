"""Rules on recorded steps see in what torch really calls what their examples say; healthy steps give no alarm."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from whyloss.core.finding import Finding
from whyloss.core.sample import flat
from whyloss.diagnosis.diagnose import run_rules
from whyloss.diagnosis.fold import fold
from whyloss.rules.recorded import sample_recorded
from whyloss.tape.graph import step_graph
from whyloss.tape.recording import recording

X = torch.linspace(-2, 2, 60).sin().view(12, 5)
LABELS = torch.arange(12) % 3
PAIRS = (torch.arange(36).view(12, 3) % 2).float()  # several ones a row
QUANTITIES = (X[:, 0] - 0.2) * 3


def net(*ends, out=3, middle=nn.Tanh):
    torch.manual_seed(0)
    between = () if middle is None else (middle(),)
    return nn.Sequential(nn.Linear(5, 8), *between, nn.Linear(8, out), *ends)


def teacher(x):
    with torch.no_grad():
        return net()(x).softmax(1)


FAULTS = {
    "softmax module": (net(nn.Softmax(dim=1)), lambda m: nn.CrossEntropyLoss()(m(X), LABELS)),
    "softmax method": (net(), lambda m: functional.cross_entropy(m(X).softmax(-1).float(), LABELS)),
    "softmax by hand": (
        net(),
        lambda m: functional.cross_entropy(m(X).exp() / m(X).exp().sum(1, keepdim=True), LABELS),
    ),
    "softmax, log_softmax and nll_loss": (
        net(nn.Softmax(dim=1), nn.LogSoftmax(dim=1)),
        lambda m: functional.nll_loss(m(X), LABELS),
    ),
    "sigmoid module": (net(nn.Sigmoid()), lambda m: nn.BCEWithLogitsLoss()(m(X), PAIRS)),
    "sigmoid method": (
        net(out=1),
        lambda m: functional.binary_cross_entropy_with_logits(m(X).sigmoid().squeeze(1), PAIRS[:, 0]),
    ),
    "nll of a softmax": (net(nn.Softmax(dim=1)), lambda m: nn.NLLLoss()(m(X), LABELS)),
    "kl_div of a softmax": (net(nn.Softmax(1)), lambda m: functional.kl_div(m(X), teacher(X), reduction="batchmean")),
    "mse_loss of [12, 1] and [12]": (net(out=1), lambda m: functional.mse_loss(m(X), QUANTITIES)),
    "a difference of [12] and [12, 1]": (net(out=1), lambda m: ((m(X).squeeze() - QUANTITIES[:, None]) ** 2).mean()),
    "an error as a method chain": (net(out=1), lambda m: m(X).sub(QUANTITIES).abs().mean(dim=1).mean()),
    "binary cross-entropy by hand": (
        net(nn.Sigmoid(), out=1),
        lambda m: -(PAIRS[:, 0] * m(X).log() + (1 - PAIRS[:, 0]) * (1 - m(X)).log()).mean(),
    ),
    "one unit": (net(out=1), lambda m: functional.cross_entropy(m(X), PAIRS[:, :1])),
    "several ones": (net(), lambda m: functional.cross_entropy(m(X), PAIRS)),
    "class numbers": (net(out=1), lambda m: nn.BCEWithLogitsLoss()(m(X).squeeze(1), LABELS.float())),
    "minus the loss": (net(), lambda m: -functional.cross_entropy(m(X), LABELS)),
    "one minus the loss": (net(), lambda m: 1 - functional.cross_entropy(m(X), LABELS)),
    "a sum of negated losses": (
        net(),
        lambda m: torch.stack(
            [-functional.cross_entropy(m(X[:6]), LABELS[:6]) / 2, -0.5 * nn.MSELoss()(m(X), PAIRS)]
        ).sum(),
    ),
    "a detached term": (net(), lambda m: functional.cross_entropy(m(X), LABELS) + 0.1 * m(X).norm().detach()),
    "a counted term": (
        net(),
        lambda m: functional.cross_entropy(m(X), LABELS) + (m(X).argmax(1) != LABELS).float().mean(),
    ),
    "a term made anew": (
        net(),
        lambda m: functional.cross_entropy(m(X), LABELS) + torch.stack([p.norm() for p in m.parameters()]).sum().data,
    ),
    "a forced loss": (net(), lambda m: (m(X).argmax(1) - LABELS).float().abs().mean().requires_grad_()),
    "all targets ignored": (net(), lambda m: functional.cross_entropy(m(X), LABELS * 0 - 100, reduction="sum")),
    "all masked": (
        net(),
        lambda m: (functional.cross_entropy(m(X), LABELS, reduction="none") * torch.zeros(12)).sum(),
    ),
    "softmax over the batch": (net(nn.Softmax(dim=0)), lambda m: functional.mse_loss(m(X), PAIRS)),
    "softmax without an axis": (
        net(nn.Unflatten(1, (1, 3)), nn.LogSoftmax(dim=0)),
        lambda m: functional.kl_div(m(X), PAIRS.view(12, 1, 3)),
    ),
    "softmax over one unit": (net(nn.Softmax(dim=1), out=1), lambda m: functional.mse_loss(m(X), PAIRS[:, :1])),
    "relu, negative targets": (net(nn.ReLU(), out=1), lambda m: nn.L1Loss()(m(X).squeeze(-1), QUANTITIES)),
    "tanh, wide targets": (net(nn.Tanh(), out=1), lambda m: (m(X).squeeze(-1) - 2 * QUANTITIES).pow(2).mean()),
    "no activation": (net(middle=None), lambda m: functional.cross_entropy(m(X), LABELS)),
    "no activation but dropout": (net(middle=nn.Dropout), lambda m: functional.cross_entropy(m(X), LABELS)),
}
NAMES = {
    "softmax-before-cross-entropy": {
        "softmax module",
        "softmax method",
        "softmax by hand",
        "softmax, log_softmax and nll_loss",
    },
    "sigmoid-before-bce-with-logits": {"sigmoid module", "sigmoid method"},
    "nll-on-probabilities": {"nll of a softmax"},
    "kl-input-not-log": {"kl_div of a softmax"},
    "loss-broadcast": {
        "mse_loss of [12, 1] and [12]",
        "a difference of [12] and [12, 1]",
        "an error as a method chain",
        "binary cross-entropy by hand",
    },
    "loss-target-mismatch": {"one unit", "several ones", "class numbers"},
    "loss-sign": {"minus the loss", "one minus the loss", "a sum of negated losses"},
    "loss-term-constant": {"a detached term", "a counted term", "a term made anew"},
    "loss-detached": {"a forced loss"},
    "targets-all-ignored": {"all targets ignored", "all masked"},
    "softmax-wrong-axis": {"softmax over the batch", "softmax without an axis"},
    "output-range": {"softmax over one unit", "relu, negative targets", "tanh, wide targets"},
    "missing-nonlinearity": {"no activation", "no activation but dropout"},
}
OWN = frozenset(NAMES)
CASES = [(name, case) for name, cases in NAMES.items() for case in sorted(cases)]


def alarms(model, loss):
    with recording(model) as step:
        loss(model).backward()
    found = run_rules(sample_recorded(step_graph(step.tape()), loss=flat(60)))
    roots, _ = fold([f for f in found if isinstance(f, Finding) and f.name in OWN])
    return {f.name: f for f in roots if f.severity.alarm}


@pytest.mark.parametrize(("name", "case"), CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_fault_is_the_root(name, case):
    found = alarms(*FAULTS[case])
    assert set(found) == {name}
    assert found[name].certain or name == "loss-target-mismatch"


class Pairs(nn.Module):
    """Two towers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.values = net(out=4), net(out=4), nn.Linear(5, 12)

    def forward(self, x):
        return functional.normalize(self.a(x), dim=1), functional.normalize(self.b(x), dim=1)


def contrastive(model):
    a, b = model(X)
    scores = a @ b.T * 10
    return functional.cross_entropy(scores, torch.arange(12)) - scores.log_softmax(0).diagonal().mean()


def mean_discrepancy(model):
    """Kernels of [N, 1] against [N], which enlarge both sides on purpose."""
    a, _ = model(X)
    x, y = a[:, 0], QUANTITIES
    return (-((x[:, None] - x) ** 2)).exp().mean() - 2 * (-((x - y[:, None]) ** 2)).exp().mean()


def quantiles(model):
    away = QUANTITIES[:, None, None].expand(12, 12, 1) - model.values(X)[:, None, :]
    return torch.maximum(0.1 * away, -0.9 * away).mean()


def ranking(model):
    score = model(X)[0][:, 0]
    return functional.relu(0.1 - (score[:, None] - score) * (QUANTITIES[:, None] - QUANTITIES).sign()).mean()


def straight_through(model):
    a, b = model(X)
    hard = a + (a.round() - a).detach()
    return functional.mse_loss(hard, b.detach()) + 0.25 * functional.mse_loss(a, b) + (b - b.detach()).sum()


def policy(model):
    logits = model(X)[0]
    chosen = -functional.cross_entropy(logits, LABELS, reduction="none")
    gain = QUANTITIES - model.values(X).mean(1).detach()
    return -(chosen * gain).mean() - 0.01 * torch.distributions.Categorical(logits=logits).entropy().mean()


def distilled(model):
    logits, target = model(X)[0][:, :3], teacher(X)
    entropy = -(target * target.log()).sum(1).mean()
    return functional.kl_div(logits.log_softmax(1), target, reduction="batchmean") - entropy + torch.tensor(0.3)


def mixed(model):
    logits = model(X)[0][:, :3]
    soft = 0.3 * functional.one_hot(LABELS, 3) + 0.7 * functional.one_hot(LABELS.flip(0), 3)
    some = torch.where(torch.arange(12) % 2 == 0, LABELS, -100)
    return functional.cross_entropy(logits, soft) + functional.cross_entropy(logits, some)


def focal(model):
    logits = model(X)[0][:, :3]
    p, costs = logits.sigmoid(), functional.binary_cross_entropy_with_logits(logits, PAIRS, reduction="none")
    return (costs * (1 - p * PAIRS) ** 2).mean()


def pooled(model):
    """Attention over a first axis that is time, and over a single element."""
    steps = model(X)[0].view(3, 4, 4)
    weights = model.values(X).view(3, 4, 12)[..., :1].softmax(0)
    return (weights * steps).sum(0).square().mean() + (steps[:1].softmax(0) * steps[:1]).mean()


HEALTHY = (contrastive, mean_discrepancy, quantiles, ranking, straight_through, policy, distilled, mixed, focal, pooled)


@pytest.mark.parametrize("loss", HEALTHY, ids=lambda f: f.__name__)
def test_a_healthy_step_that_looks_odd_gives_no_alarm(loss):
    assert alarms(Pairs(), loss) == {}
