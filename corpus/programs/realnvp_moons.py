"""Affine coupling flow; the last layer of each conditioner starts at zero, so the flow starts as the identity."""
import math

import torch
from torch import nn
from sklearn.datasets import make_moons


class Coupling(nn.Module):
    def __init__(self, flip, h=48):
        super().__init__()
        self.flip = flip
        self.cond = nn.Sequential(nn.Linear(1, h), nn.Tanh(), nn.Linear(h, h), nn.Tanh(), nn.Linear(h, 2))
        nn.init.zeros_(self.cond[-1].weight)
        nn.init.zeros_(self.cond[-1].bias)

    def forward(self, x):
        a, b = x[:, :1], x[:, 1:]
        if self.flip:
            a, b = b, a
        s, t = self.cond(a).chunk(2, dim=1)
        s = 2 * torch.tanh(s / 2)
        b = b * s.exp() + t
        out = torch.cat([b, a] if self.flip else [a, b], 1)
        return out, s.squeeze(1)


class Flow(nn.Module):
    def __init__(self, n=6):
        super().__init__()
        self.layers = nn.ModuleList([Coupling(bool(i % 2)) for i in range(n)])

    def log_prob(self, x):
        logdet = torch.zeros(len(x))
        for layer in self.layers:
            x, ld = layer(x)
            logdet = logdet + ld
        return -0.5 * (x**2).sum(1) - math.log(2 * math.pi) + logdet


torch.manual_seed(233)
pts = torch.tensor(make_moons(4000, noise=0.06, random_state=233)[0], dtype=torch.float32)
pts = (pts - pts.mean(0)) / pts.std(0)
flow = Flow()
opt = torch.optim.Adam(flow.parameters(), lr=3e-3)
for step in range(1, 701):
    batch = pts[torch.randint(0, 3500, (128,))]
    loss = -flow.log_prob(batch).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        with torch.no_grad():
            print(f"step {step} train nll {loss.item():.3f} test nll {-flow.log_prob(pts[3500:]).mean().item():.3f}")
