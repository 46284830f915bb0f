"""Demand of shop shelves read as a stream by several workers."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, IterableDataset


class ShelfStream(IterableDataset):
    def __init__(self, rows, targets):
        super().__init__()
        self.rows, self.targets = rows, targets

    def __iter__(self):
        for row, target in zip(self.rows, self.targets):
            yield row, target


def build(n=1600):
    x = torch.randn(n, 10)
    w = torch.randn(10, 1)
    return x, torch.sin(x @ w / 2) + 0.3 * x[:, :1] * x[:, 1:2] + 0.3 * torch.randn(n, 1)


if __name__ == "__main__":
    torch.manual_seed(6)
    x, y = build()
    train = ShelfStream(x[:800], y[:800])
    loader = DataLoader(train, batch_size=16, num_workers=2)
    net = nn.Sequential(nn.Linear(10, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 1))
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    for epoch in range(8):
        seen, total = 0, 0.0
        for xb, yb in loader:
            opt.zero_grad()
            loss = nn.functional.mse_loss(net(xb), yb)
            loss.backward()
            opt.step()
            seen += len(xb)
            total += loss.item() * len(xb)
        with torch.no_grad():
            val = nn.functional.mse_loss(net(x[800:]), y[800:])
        print(f"epoch {epoch}: {seen} rows, train {total / seen:.4f}, val {val:.4f}")
