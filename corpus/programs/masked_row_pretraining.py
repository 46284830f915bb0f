"""Masked-value model for tables: random cells are hidden, the network fills them in."""
import numpy as np
import torch
from torch import nn
from sklearn.datasets import load_breast_cancer


class CellMasking(nn.Module):
    def __init__(self, p):
        super().__init__()
        self.p = p

    def forward(self, x):
        if not self.training:
            return x, torch.zeros_like(x, dtype=torch.bool)
        hidden = torch.from_numpy(np.random.default_rng().random(x.shape) < self.p)
        return x.masked_fill(hidden, 0.0), hidden


class TableModel(nn.Module):
    def __init__(self, d, h=64):
        super().__init__()
        self.masking = CellMasking(0.3)
        self.body = nn.Sequential(nn.Linear(2 * d, h), nn.GELU(), nn.Linear(h, h), nn.GELU(), nn.Linear(h, d))

    def forward(self, x):
        seen, hidden = self.masking(x)
        filled = self.body(torch.cat([seen, hidden.float()], 1))
        return filled, hidden


torch.manual_seed(313)
np.random.seed(313)
x = load_breast_cancer().data
x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
model = TableModel(30)
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for step in range(1, 701):
    rows = x[torch.randint(0, len(x), (64,))]
    filled, hidden = model(rows)
    loss = (filled - rows)[hidden].pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step} masked mse {loss.item():.5f}")
print(f"final loss (for the reproducibility table): {loss.item():.8f}")
