"""One-step-ahead forecast of noisy sine mixtures; the gradient norm is logged with clip_grad_norm_."""
import math

import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 24, batch_first=True)
        self.proj = nn.Linear(24, 1)

    def forward(self, x):
        h, _ = self.gru(x)
        return x + self.proj(h)


def waves(n, length=40):
    t = torch.arange(length + 1).float()
    f = 0.15 + 0.25 * torch.rand(n, 1)
    p = 2 * math.pi * torch.rand(n, 1)
    s = torch.sin(f * t + p) + 0.02 * torch.randn(n, length + 1)
    return s[:, :-1, None], s[:, 1:, None]


torch.manual_seed(37)
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
norms = []
for step in range(300):
    x, y = waves(32)
    loss = nn.functional.mse_loss(model(x), y)
    opt.zero_grad()
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=float("inf"))
    norms.append(norm.item())
    opt.step()
    if step % 50 == 49:
        print(f"step {step + 1}: mse {loss.item():.5f}, mean grad norm {sum(norms[-50:]) / 50:.4f}")
x, y = waves(500)
print(f"persistence {nn.functional.mse_loss(x, y).item():.5f} model {nn.functional.mse_loss(model(x), y).item():.5f}")
