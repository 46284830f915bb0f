"""Yearly deviation of plant yields from the regional mean, MLP regression."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F


class YieldModel(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.hidden = nn.Linear(n_in, 64)
        self.hidden2 = nn.Linear(64, 32)
        self.output = nn.Linear(32, 1)

    def forward(self, x):
        for layer in (self.hidden, self.hidden2):
            x = F.relu(layer(x))
        return self.output(x)


def simulate(n, rng):
    x = rng.normal(size=(n, 6))
    y = 2.0 * x[:, 0] - 1.5 * np.abs(x[:, 1]) + x[:, 2] * x[:, 3] + 0.2 * rng.normal(size=n)
    return x.astype(np.float32), y.astype(np.float32)


def main():
    torch.manual_seed(14)
    rng = np.random.default_rng(14)
    xtr, ytr = map(torch.from_numpy, simulate(1600, rng))
    xva, yva = map(torch.from_numpy, simulate(400, rng))
    model = YieldModel(6)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(30):
        order = torch.randperm(1600)
        for s in range(0, 1600, 32):
            b = order[s:s + 32]
            pred = model(xtr[b]).squeeze(-1)
            loss = F.mse_loss(pred, ytr[b])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 3 == 2:
            with torch.no_grad():
                val = F.mse_loss(model(xva).squeeze(-1), yva).item()
            print(f"epoch {epoch + 1}: train {loss.item():.3f} val {val:.3f}")
    print("target variance:", round(float(yva.var()), 3))


main()
