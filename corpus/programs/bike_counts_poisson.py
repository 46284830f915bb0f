"""Hourly bicycle counts with a Poisson likelihood (log-rate output); the loss may go below zero."""
import math

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class Hours(IterableDataset):
    def __init__(self, n, seed):
        g = torch.Generator().manual_seed(seed)
        self.hour = torch.rand(n, generator=g) * 24
        self.temp = torch.randn(n, generator=g)
        self.weekend = (torch.rand(n, generator=g) < 2 / 7).float()
        log_rate = 2.0 + 0.8 * torch.sin((self.hour - 9) / 24 * 2 * math.pi) * (1 - 0.5 * self.weekend) + 0.3 * self.temp
        self.rate = log_rate.exp()
        self.count = torch.poisson(self.rate, generator=g)

    def features(self):
        a = self.hour / 24 * 2 * math.pi
        return torch.stack([a.sin(), a.cos(), self.temp, self.weekend], 1)

    def __iter__(self):
        f = self.features()
        for i in torch.randperm(len(f)).tolist():
            yield f[i], self.count[i]


torch.manual_seed(227)
train, test = Hours(3000, 1), Hours(1000, 2)
loader = DataLoader(train, batch_size=64)
net = nn.Sequential(nn.Linear(4, 32), nn.SiLU(), nn.Linear(32, 1))
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
criterion = nn.PoissonNLLLoss(log_input=True)
for epoch in range(12):
    losses = []
    for x, c in loader:
        loss = criterion(net(x)[:, 0], c)
        opt.zero_grad()
        loss.backward()
        opt.step()
        losses.append(loss.item())
    with torch.no_grad():
        err = (net(test.features())[:, 0].exp() / test.rate).log().abs().mean()
    print(f"epoch {epoch} nll {sum(losses) / len(losses):.3f} mean relative error of the rate {err:.3f}")
