"""Noise-prediction model for 2-d points (diffusion style) with averaged weights on the side."""
import math

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

T = 50
betas = torch.linspace(1e-3, 0.12, T)
alpha_bar = torch.cumprod(1 - betas, 0)


def data(n):
    centre = torch.randint(0, 4, (n,)) * (math.pi / 2)
    return torch.stack([centre.cos(), centre.sin()], 1) * 1.5 + 0.1 * torch.randn(n, 2)


class EpsNet(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.time = nn.Embedding(T, h)
        self.inp = nn.Linear(2, h)
        self.mid = nn.Sequential(nn.SiLU(), nn.Linear(h, h), nn.SiLU(), nn.Linear(h, 2))

    def forward(self, x, t):
        return self.mid(self.inp(x) + self.time(t))


def eps_loss(model, x0):
    t = torch.randint(0, T, (len(x0),))
    eps = torch.randn_like(x0)
    a = alpha_bar[t, None]
    return (model(a.sqrt() * x0 + (1 - a).sqrt() * eps, t) - eps).pow(2).mean()


torch.manual_seed(47)
model = EpsNet()
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.999))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for step in range(1, 1201):
    loss = eps_loss(model, data(256))
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(model)
    if step % 200 == 0:
        with torch.no_grad():
            probe = data(4000)
            print(f"{step} loss {loss.item():.4f} raw {eps_loss(model, probe):.4f} averaged {eps_loss(ema, probe):.4f}")
