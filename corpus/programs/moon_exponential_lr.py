"""Residual MLP on interleaved spirals, exponential decay of the learning rate."""
import math

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim.lr_scheduler import ExponentialLR
from torch.utils.data import DataLoader, TensorDataset


class ResMLP(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.inp = nn.Linear(2, d)
        self.r1 = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.r2 = nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))
        self.out = nn.Linear(d, 2)

    def forward(self, x):
        h = self.inp(x)
        h = h + self.r1(torch.relu(h))
        h = h + self.r2(torch.relu(h))
        return self.out(torch.relu(h))


def spirals(n):
    y = torch.randint(0, 2, (n,))
    r = torch.rand(n).sqrt()
    a = r * 3 * math.pi + y * math.pi
    return torch.stack([r * a.cos(), r * a.sin()], 1) * 2 + 0.03 * torch.randn(n, 2), y


torch.manual_seed(34)
trainset = TensorDataset(*spirals(1600))
xt, yt = spirals(600)
trainloader = DataLoader(trainset, batch_size=32, shuffle=True)
net = ResMLP()
criterion = nn.CrossEntropyLoss()
optimizer = optim.Adam(net.parameters(), lr=2e-3)
scheduler = ExponentialLR(optimizer, gamma=0.9)

for epoch in range(16):
    running_loss = 0.0
    for i, (inputs, labels) in enumerate(trainloader):
        optimizer.zero_grad()
        loss = criterion(net(inputs), labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        running_loss += loss.item()
    with torch.no_grad():
        acc = (net(xt).argmax(1) == yt).float().mean()
    print(f"[{epoch + 1}] loss: {running_loss / len(trainloader):.4f} test: {acc:.3f}")
