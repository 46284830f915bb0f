#!/usr/bin/env python
"""Which of six shapes is in the picture? Small conv net, plain SGD.

The pictures come in acquisition runs ("shards"); they are read one after the other.
"""

import argparse
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


def draw(kind, rng, size=16):
    img = np.zeros((size, size), dtype=np.float32)
    r, c = rng.integers(2, size - 8, 2)
    w = 6
    if kind == 0:
        img[r : r + w, c : c + w] = 1
    elif kind == 1:
        img[r : r + w, c : c + w] = 1
        img[r + 1 : r + w - 1, c + 1 : c + w - 1] = 0
    elif kind == 2:
        img[r + 2 : r + 4, c : c + w] = 1
    elif kind == 3:
        img[r : r + w, c + 2 : c + 4] = 1
    elif kind == 4:
        for i in range(w):
            img[r + i, c + i] = 1
    else:
        img[r + 2 : r + 4, c : c + w] = 1
        img[r : r + w, c + 2 : c + 4] = 1
    return np.clip(img + rng.normal(0, 0.15, img.shape), 0, 1)


def load_shard(number, n=640):
    rng = np.random.default_rng(100 + number)
    y = rng.integers(0, 6, n)
    x = np.stack([draw(k, rng) for k in y])[:, None].astype(np.float32)
    if number == 4:
        x = x * 255.0  # this run was stored as 8-bit counts
    return torch.from_numpy(x), torch.from_numpy(y)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.act = nn.ReLU()
        self.fc2 = nn.Linear(64, 6)
        for m in (self.conv1, self.conv2, self.fc1):
            nn.init.kaiming_normal_(m.weight, nonlinearity="relu")
            nn.init.zeros_(m.bias)

    def forward(self, x):
        x = F.max_pool2d(self.act(self.conv1(x)), 2)
        x = F.max_pool2d(self.act(self.conv2(x)), 2)
        x = self.act(self.fc1(x.flatten(1)))
        return self.fc2(x)


if __name__ == "__main__":
    ap = argparse.ArgumentParser()
    ap.add_argument("--lr", type=float, default=0.02)
    ap.add_argument("--batch", type=int, default=32)
    ap.add_argument("--shards", type=int, default=12)
    args = ap.parse_args()
    torch.manual_seed(1)
    net = Net()
    sgd = torch.optim.SGD(net.parameters(), lr=args.lr)
    xv, yv = load_shard(99)
    for s in range(args.shards):
        x, y = load_shard(s)
        for xb, yb in zip(x.split(args.batch), y.split(args.batch)):
            loss = F.cross_entropy(net(xb), yb)
            sgd.zero_grad()
            loss.backward()
            sgd.step()
        with torch.no_grad():
            acc = (net(xv).argmax(1) == yv).float().mean().item()
        print(f"shard {s:2d}: loss {loss.item():.4f} val acc {acc:.3f}")
    print("FINAL", acc)
