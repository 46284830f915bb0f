"""Income above 50k from a census-like table (age, hours, capital gain, weights, codes)."""
import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(2)
rng = np.random.default_rng(2)


def census(n):
    age = rng.uniform(17, 90, n)
    weight = rng.lognormal(12, 0.5, n)              # sampling weight of the census
    education = rng.integers(1, 17, n)
    gain = np.where(rng.random(n) < 0.1, rng.lognormal(8.5, 1, n), 0)
    hours = rng.normal(40, 12, n).clip(1, 99)
    codes = rng.integers(0, 10, (n, 9))
    z = 0.05 * (age - 45) + 0.35 * (education - 8) + 0.05 * (hours - 40) + (gain > 3000) * 2 + 0.3 * (codes[:, 0] > 5)
    label = (z + rng.logistic(0, 0.5, n) > 0.5).astype(np.int64)
    return np.column_stack([age, weight, education, gain, hours, codes]).astype(np.float32), label


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(14, 21)
        self.l2 = nn.Linear(21, 2)

    def forward(self, x):
        return self.l2(torch.relu(self.l1(x)))


x, y = map(torch.from_numpy, census(4000))
xt, yt = map(torch.from_numpy, census(1000))
clf = Classifier()
opt = torch.optim.Adam(clf.parameters(), lr=0.001)
for epoch in range(25):
    total = 0.0
    for idx in torch.randperm(4000).split(100):
        loss = nn.functional.cross_entropy(clf(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    if epoch % 3 == 0:
        acc = (clf(xt).argmax(1) == yt).float().mean().item()
        print(f"epoch {epoch} loss {total / 40:.4f} accuracy {acc:.4f}")
