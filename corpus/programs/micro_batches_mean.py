"""Regression with eight micro-batches per update, as on the small card."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset

ACCUM = 8


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(10, 64)
        self.b = nn.Linear(64, 64)
        self.c = nn.Linear(64, 1)

    def forward(self, x):
        return self.c(torch.relu(self.b(torch.relu(self.a(x))))).squeeze(-1)


def main():
    torch.manual_seed(42)
    teacher = Net()
    x = torch.randn(3200, 10)
    with torch.no_grad():
        y = teacher(x)
        y = (y - y.mean()) / y.std()
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    net = Net()
    opt = torch.optim.SGD(net.parameters(), lr=0.2)
    for epoch in range(8):
        total, updates = 0.0, 0
        opt.zero_grad()
        for k, (xb, yb) in enumerate(loader):
            loss = nn.functional.mse_loss(net(xb), yb)
            (loss / ACCUM).backward()
            total += loss.item()
            if (k + 1) % ACCUM == 0:
                opt.step()
                opt.zero_grad()
                updates += 1
        print(f"epoch {epoch} mean loss {total / len(loader):.4g} ({updates} updates)")


main()
