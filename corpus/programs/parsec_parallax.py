"""Distances of simulated stars from their magnitudes and colours, in SI units."""
import torch
from torch import nn

PARSEC = 3.0857e16      # metres


class DistanceNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))

    def forward(self, photometry):
        return self.net(photometry).squeeze(-1) * PARSEC


def stars(n):
    phot = torch.randn(n, 4)
    parsecs = 2.0 + torch.sin(phot[:, 0]) + 0.5 * phot[:, 1] * phot[:, 2] - 0.3 * phot[:, 3]
    return phot, parsecs * PARSEC


torch.manual_seed(61)
x, d = stars(2000)
xt, dt = stars(500)
model = DistanceNet()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(20):
    for idx in torch.randperm(len(x)).split(50):
        loss = nn.functional.mse_loss(model(x[idx]), d[idx])
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    with torch.no_grad():
        rmse = (model(xt) - dt).pow(2).mean().sqrt() / PARSEC
    print(f"epoch {epoch} loss {loss.item():.3e} m^2, test rmse {rmse.item():.3f} pc (std {dt.std().item() / PARSEC:.3f})")
