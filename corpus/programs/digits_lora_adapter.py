"""Adapt a small digit classifier to upside-down digits with low-rank adapters."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(3)

digits = load_digits()
X = torch.tensor(digits.images, dtype=torch.float32) / 16.0
y = torch.tensor(digits.target)
perm = torch.randperm(len(X))
X, y = X[perm], y[perm]
X_rot = torch.flip(X, dims=(1, 2)).reshape(len(X), -1)
X = X.reshape(len(X), -1)


class LoraLinear(nn.Module):
    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0):
        super().__init__()
        self.base = base
        for p in self.base.parameters():
            p.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(rank, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * (x @ self.lora_A.t() @ self.lora_B.t())


net = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))

# --- pretraining on upright digits
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for step in range(300):
    idx = torch.randint(0, 1400, (64,))
    loss = F.cross_entropy(net(X[idx]), y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
print(f"pretrained: loss {loss.item():.4f}")

# --- adaptation to rotated digits, only the adapters train
for i in (0, 2, 4):
    net[i] = LoraLinear(net[i])
trainable = [p for p in net.parameters() if p.requires_grad]
print("trainable parameters:", sum(p.numel() for p in trainable), "of", sum(p.numel() for p in net.parameters()))
opt = torch.optim.AdamW(trainable, lr=4e-3, weight_decay=0.0)
for step in range(900):
    idx = torch.randint(0, 1400, (64,))
    loss = F.cross_entropy(net(X_rot[idx]), y[idx])
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step:4d} loss {loss.item():.4f}")

with torch.no_grad():
    acc = (net(X_rot[1400:]).argmax(1) == y[1400:]).float().mean().item()
print(f"held-out accuracy on rotated digits: {acc:.3f}")
