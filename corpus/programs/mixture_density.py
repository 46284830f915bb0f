"""Mixture density network; targets have tiny noise, so the likelihood passes one."""
import torch
import torch.nn as nn


class MDN(nn.Module):
    def __init__(self, k=3, hidden=48):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(1, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh())
        self.pi = nn.Linear(hidden, k)
        self.mu = nn.Linear(hidden, k)
        self.log_sigma = nn.Linear(hidden, k)

    def nll(self, x, y):
        h = self.trunk(x)
        comp = torch.distributions.Normal(self.mu(h), self.log_sigma(h).clamp(-6, 2).exp())
        logp = comp.log_prob(y) + self.pi(h).log_softmax(-1)
        return -logp.logsumexp(-1).mean()


def make(n, g):
    x = torch.rand(n, 1, generator=g) * 2 - 1
    branch = torch.randint(0, 2, (n, 1), generator=g).float() * 2 - 1
    y = branch * (0.5 + 0.4 * torch.sin(3 * x)) + 0.02 * torch.randn(n, 1, generator=g)
    return x, y


def run():
    torch.manual_seed(14)
    g = torch.Generator().manual_seed(15)
    x, y = make(2000, g)
    xv, yv = make(500, g)
    net = MDN()
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=1200)
    for it in range(1200):
        idx = torch.randint(0, len(x), (128,), generator=g)
        loss = net.nll(x[idx], y[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 5.0)
        opt.step()
        sched.step()
        if (it + 1) % 200 == 0:
            with torch.no_grad():
                print(f"iter {it + 1}: nll {loss.item():.3f} | valid nll {net.nll(xv, yv).item():.3f}")


run()
