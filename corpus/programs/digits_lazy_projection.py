"""Digits as a sequence of rows; the feature size of the projection depends on the input."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class RowModel(nn.Module):
    def __init__(self, hidden=64, classes=10):
        super().__init__()
        self.hidden = hidden
        self.out = nn.Linear(hidden, classes)

    def forward(self, x):
        x = x.flatten(1)
        project = nn.Linear(x.shape[1], self.hidden)
        return self.out(F.relu(project(x)))


def batches(x, y, size):
    for idx in torch.randperm(len(x)).split(size):
        yield x[idx], y[idx]


torch.manual_seed(24)
d = load_digits()
x = torch.tensor(d.images, dtype=torch.float32) / 8 - 1
y = torch.tensor(d.target)
model = RowModel()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(1, 16):
    total, count = 0.0, 0
    for xb, yb in batches(x[:1400], y[:1400], 50):
        loss = F.cross_entropy(model(xb), yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total, count = total + loss.item(), count + 1
    acc = (model(x[1400:]).argmax(1) == y[1400:]).float().mean()
    print(f"epoch {epoch}: loss {total / count:.3f}  accuracy {acc:.3f}")
