"""Read a gauge from a blurred strip of pixels; the error is measured with NumPy."""
import numpy as np
import torch
from torch import nn


def strips(n):
    pos = torch.rand(n, 1)
    grid = torch.linspace(0, 1, 24)
    return torch.exp(-((grid - pos) ** 2) / 0.01) + 0.1 * torch.randn(n, 24), pos


def rmse(pred, target):
    diff = pred.detach().numpy() - target.numpy()
    return torch.tensor(np.sqrt(np.mean(diff ** 2)), requires_grad=True)


def train(net, x, y, steps):
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)
    for step in range(steps):
        b = torch.randint(0, len(x), (32,))
        loss = rmse(net(x[b]), y[b])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 60 == 0:
            print(f"step {step:4d}  rmse {loss.item():.4f}")


torch.manual_seed(110)
x, y = strips(1000)
net = nn.Sequential(nn.Linear(24, 32), nn.Tanh(), nn.Linear(32, 1))
train(net, x, y, 600)
with torch.no_grad():
    print("final rmse on all strips", rmse(net(x), y).item(), "spread of the positions", y.std().item())
