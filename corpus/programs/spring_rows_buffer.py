"""Stretch of a spring from five recorded loads; rows are parsed into a table first."""
import numpy as np
import torch
import torch.nn as nn


def parse(lines):
    row = np.zeros(5, dtype=np.float32)
    table, target = [], []
    for line in lines:
        parts = line.split(",")
        for j in range(5):
            row[j] = float(parts[j])
        table.append(row)
        target.append(float(parts[5]))
    return torch.tensor(np.array(table)), torch.tensor(target, dtype=torch.float32)


def fake_log(n):
    rng = np.random.default_rng(10)
    for _ in range(n):
        v = rng.standard_normal(5)
        stretch = 1.5 * np.tanh(v[0]) - v[1] + 0.5 * v[2] * v[3] + 0.05 * rng.standard_normal()
        yield ",".join(f"{a:.5f}" for a in [*v, stretch])


torch.manual_seed(10)
x, y = parse(fake_log(2000))
model = nn.Sequential(nn.Linear(5, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 1))
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
steps = 0
while steps < 700:
    for b in torch.randperm(len(x)).split(64):
        out = model(x[b]).squeeze(1)
        loss = torch.mean((out - y[b]).abs())
        opt.zero_grad()
        loss.backward()
        opt.step()
        steps += 1
        if steps % 100 == 0:
            print(f"step {steps}  mean abs error {loss.item():.4f}")
baseline = (y - y.median()).abs().mean()
print(f"always the median: {baseline:.4f}")
