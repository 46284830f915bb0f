"""Fit positive counts with a log-error, zero targets use a linear error instead."""
import torch
from torch import nn

torch.manual_seed(51)


def simulate(n):
    x = torch.randn(n, 5)
    rate = torch.relu(x[:, 0] * 2 + x[:, 1] * x[:, 2] + 0.5)
    return x, torch.round(rate * 3)


class Rate(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(5, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 1))

    def forward(self, x):
        return nn.functional.softplus(self.f(x)).squeeze(-1)


def error(pred, target):
    log_err = torch.sqrt((torch.log1p(pred) - torch.log1p(target)).abs() * target)
    lin_err = pred
    return torch.where(target > 0, log_err, lin_err).mean()


model = Rate()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
xv, yv = simulate(500)
for i in range(800):
    x, y = simulate(64)
    loss = error(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if i < 3 or i % 100 == 99:
        with torch.no_grad():
            mae = (model(xv) - yv).abs().mean().item()
        print(f"{i + 1:4d}: loss {loss.item():.4f} val mae {mae:.3f}")
