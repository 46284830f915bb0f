"""Train, prune the hidden layers to a quarter of their units, fine-tune."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(8, 64)
        self.fc2 = nn.Linear(64, 64)
        self.fc3 = nn.Linear(64, 1)

    def forward(self, x):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


def shrink(layer, rows, cols):
    new = nn.Linear(len(cols), len(rows))
    with torch.no_grad():
        new.weight.copy_(layer.weight[rows][:, cols])
        new.bias.copy_(layer.bias[rows])
    return new


def speed_up(model, keep=16):
    r1 = model.fc1.weight.norm(dim=1).topk(keep).indices
    r2 = model.fc2.weight.norm(dim=1).topk(keep).indices
    model.fc1 = shrink(model.fc1, r1, torch.arange(8))
    model.fc2 = shrink(model.fc2, r2, r1)
    model.fc3 = shrink(model.fc3, torch.arange(1), r2)


def batch(n):
    x = torch.randn(n, 8)
    return x, (torch.sin(x[:, :1]) * x[:, 1:2] + x[:, 2:3].abs() - x[:, 3:4] * (x[:, 4:5] > 0))


def epochs(model, opt, steps, label):
    total = 0.0
    for s in range(1, steps + 1):
        x, y = batch(64)
        loss = F.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if s % 100 == 0:
            print(f"{label} {s} mse {total / 100:.4f}")
            total = 0.0


torch.manual_seed(25)
model = MLP()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
epochs(model, opt, 700, "dense")
speed_up(model)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
epochs(model, opt, 700, "pruned")
