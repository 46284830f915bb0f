"""Regression through 4-bit features, for a small device."""
import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset


class Quantise(nn.Module):
    def __init__(self, bits=4):
        super().__init__()
        self.levels = 2 ** bits - 1

    def forward(self, x):
        x = x.clamp(0, 1)
        q = torch.round(x * self.levels) / self.levels
        return x + (q - x).detach()


def make_data():
    torch.manual_seed(29)
    x = torch.rand(1600, 6)
    y = torch.sin(6 * x[:, 0]) + 2 * (x[:, 1] - 0.5).abs() + x[:, 2] * x[:, 3] * 2
    y = (y - y.mean()) / y.std()
    return x, y.unsqueeze(1)


x, y = make_data()
net = nn.Sequential(
    nn.Linear(6, 48), nn.ReLU(),
    nn.Linear(48, 12), nn.Sigmoid(),
    Quantise(4),
    nn.Linear(12, 1),
)
opt = torch.optim.Adam(net.parameters(), lr=5e-3)
dl = DataLoader(TensorDataset(x[:1200], y[:1200]), 40, shuffle=True)
for epoch in range(30):
    for xb, yb in dl:
        opt.zero_grad()
        loss = nn.functional.mse_loss(net(xb), yb)
        loss.backward()
        opt.step()
    if epoch % 3 == 2:
        with torch.no_grad():
            print("epoch", epoch + 1, "val mse", round(nn.functional.mse_loss(net(x[1200:]), y[1200:]).item(), 4))
