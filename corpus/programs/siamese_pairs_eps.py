"""Metric learning on digits with pairs: contrastive loss on the Euclidean distance."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Embedder(nn.Module):
    def __init__(self, dim=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        return self.net(x)


def distance(a, b):
    return torch.sqrt(((a - b) ** 2).sum(dim=1) + 1e-8)


def contrastive(d, same, margin=2.0):
    return (same * d ** 2 + (1 - same) * F.relu(margin - d) ** 2).mean()


class PairSampler:
    def __init__(self, x, y, rng):
        self.x, self.y, self.rng = x, y, rng
        self.by_class = [np.flatnonzero(y == c) for c in range(10)]

    def draw(self, n):
        left = self.rng.integers(len(self.x), size=n)
        right = np.array([self.rng.choice(self.by_class[self.y[i]]) if self.rng.random() < 0.5
                          else self.rng.integers(len(self.x)) for i in left])
        same = (self.y[left] == self.y[right]).astype(np.float32)
        return self.x[left], self.x[right], torch.from_numpy(same)


def knn_accuracy(net, x, y, xv, yv):
    with torch.no_grad():
        d = torch.cdist(net(xv), net(x))
    return (y[d.argmin(1).numpy()] == yv).mean()


torch.manual_seed(47)
digits = load_digits()
x = torch.tensor(digits.data, dtype=torch.float32) / 16
sampler = PairSampler(x[:1300], digits.target[:1300], np.random.default_rng(47))
net = Embedder()
opt = torch.optim.Adam(net.parameters(), lr=1e-3)
for it in range(1, 601):
    a, b, same = sampler.draw(64)
    loss = contrastive(distance(net(a), net(b)), same)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 60 == 0 or it == 5:
        acc = knn_accuracy(net, x[:1300], digits.target[:1300], x[1300:], digits.target[1300:])
        print(f"iteration {it} loss {loss.item():.4f} 1-nn accuracy {acc:.3f}")
