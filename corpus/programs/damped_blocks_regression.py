"""A 10-block network on Friedman's function."""
from dataclasses import dataclass

import torch
import torch.nn as nn
from sklearn.datasets import make_friedman1


@dataclass
class Config:
    width: int = 48
    blocks: int = 10
    damping: float = 0.1
    lr: float = 1e-3
    batch: int = 50
    epochs: int = 25


class Block(nn.Module):
    def __init__(self, width, damping):
        super().__init__()
        self.fc = nn.Linear(width, width)
        self.damping = damping

    def forward(self, h):
        # damp every block so that the values stay small
        return self.damping * torch.relu(self.fc(h))


class DampedNet(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.stem = nn.Linear(10, cfg.width)
        self.blocks = nn.ModuleList(Block(cfg.width, cfg.damping) for _ in range(cfg.blocks))
        self.out = nn.Linear(cfg.width, 1)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
                nn.init.zeros_(m.bias)

    def forward(self, x):
        h = self.stem(x)
        for b in self.blocks:
            h = b(h)
        return self.out(h).squeeze(1)


def run(cfg):
    torch.manual_seed(7)
    X, y = make_friedman1(1500, noise=0.3, random_state=3)
    X = torch.tensor((X - X.mean(0)) / X.std(0), dtype=torch.float32)
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)
    net = DampedNet(cfg)
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        perm = torch.randperm(1200)
        tot = 0.0
        for k in range(0, 1200, cfg.batch):
            i = perm[k:k + cfg.batch]
            loss = (net(X[i]) - y[i]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item()
        with torch.no_grad():
            val = (net(X[1200:]) - y[1200:]).pow(2).mean().item()
        print(f"epoch {epoch} train {tot / (1200 / cfg.batch):.4f} val {val:.4f}")


run(Config())
