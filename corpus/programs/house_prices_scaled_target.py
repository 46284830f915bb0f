"""Synthetic house prices in euro; both sides are standardised with statistics from the training part."""
import numpy as np
import torch
from torch import nn


class Standardizer:
    def fit(self, a):
        self.mean, self.std = a.mean(0), a.std(0)
        return self

    def __call__(self, a):
        return (a - self.mean) / self.std

    def undo(self, a):
        return a * self.std + self.mean


def houses(n, rng):
    area = rng.uniform(30, 250, n)
    rooms = np.clip(np.round(area / 28 + rng.normal(size=n)), 1, 9)
    year = rng.integers(1900, 2024, n)
    distance = rng.exponential(6000, n)
    price = 2500 * area + 9000 * rooms + 40 * (year - 1900) ** 1.5 - 9 * np.minimum(distance, 15000) + 60000
    price *= 1 + 0.03 * rng.normal(size=n)
    return np.stack([area, rooms, year, distance], 1), price[:, None]


def main():
    torch.manual_seed(131)
    rng = np.random.default_rng(131)
    x, y = houses(2500, rng)
    sx, sy = Standardizer().fit(x[:2000]), Standardizer().fit(y[:2000])
    X, Y = torch.tensor(sx(x), dtype=torch.float32), torch.tensor(sy(y), dtype=torch.float32)
    model = nn.Sequential(nn.Linear(4, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    sched = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=3, factor=0.3)
    for epoch in range(25):
        for idx in torch.randperm(2000).split(64):
            loss = nn.functional.huber_loss(model(X[idx]), Y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            pred = model(X[2000:])
            val = nn.functional.huber_loss(pred, Y[2000:]).item()
        sched.step(val)
        if epoch % 5 == 4:
            mae = np.abs(sy.undo(pred.numpy()) - y[2000:]).mean()
            print(f"epoch {epoch + 1} val {val:.5f} mean error {mae:,.0f} EUR lr {opt.param_groups[0]['lr']:.1e}")


main()
