# %% Which soil suits a plant? Categorical columns with embeddings plus two measurements.
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(27)
rng = np.random.RandomState(27)

# %% the table
n = 3000
region = rng.randint(0, 12, n)
crop = rng.randint(0, 20, n)
meas = rng.randn(n, 2).astype("float32")
effect_r, effect_c = rng.randn(12, 4), rng.randn(20, 4)
logit = effect_r[region] + effect_c[crop] + meas @ rng.randn(2, 4)
soil = (2.5 * logit + rng.gumbel(size=(n, 4))).argmax(1)

# %% shuffle the rows before the split
perm = rng.permutation(n)
meas, region, crop, soil = meas[perm], region[perm], crop[perm], soil[perm]

train, test = slice(0, 2500), slice(2500, None)
T = lambda a: torch.as_tensor(a)

# %%
class SoilNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.region, self.crop = nn.Embedding(12, 6), nn.Embedding(20, 8)
        self.body = nn.Sequential(nn.Linear(16, 48), nn.ReLU(), nn.BatchNorm1d(48), nn.Linear(48, 4))

    def forward(self, r, c, m):
        return self.body(torch.cat([self.region(r), self.crop(c), m], dim=1))

net = SoilNet()
opt = torch.optim.Adagrad(net.parameters(), lr=0.05)

# %%
R, C, M, Y = T(region), T(crop), T(meas), T(soil)
for epoch in range(15):
    net.train()
    tot = 0
    for b in torch.randperm(2500).split(50):
        opt.zero_grad()
        loss = F.cross_entropy(net(R[b], C[b], M[b]), Y[b])
        loss.backward()
        opt.step()
        tot += loss.item()
    net.eval()
    with torch.no_grad():
        out = net(R[test], C[test], M[test])
    print(f"{epoch:2d}  train {tot / 50:.3f}  test {F.cross_entropy(out, Y[test]):.3f}"
          f"  acc {(out.argmax(1) == Y[test]).float().mean():.3f}")
