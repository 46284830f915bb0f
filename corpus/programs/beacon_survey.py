"""Refine the surveyed positions of radio beacons from measured ranges (Web Mercator metres)."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(11)
torch.manual_seed(11)

ORIGIN = np.array([1_021_900.0, 6_244_300.0])  # city centre, EPSG:3857
N_BEACONS, N_FIXES = 24, 6000

true_pos = ORIGIN + rng.uniform(-400, 400, (N_BEACONS, 2))
survey = true_pos + rng.normal(0, 2.5, (N_BEACONS, 2))  # hand-held GPS while mounting
true_bias = rng.normal(1.5, 0.4, N_BEACONS)

fix = ORIGIN + rng.uniform(-450, 450, (N_FIXES, 2))
who = rng.integers(0, N_BEACONS, N_FIXES)
dist = np.linalg.norm(fix - true_pos[who], axis=1) + true_bias[who] + rng.normal(0, 0.2, N_FIXES)


class Beacons(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.position = nn.Parameter(torch.tensor(start, dtype=torch.float32))
        self.bias = nn.Parameter(torch.zeros(len(start)))

    def forward(self, where, idx):
        return (where - self.position[idx]).norm(dim=1) + self.bias[idx]


model = Beacons(survey)
fix_t = torch.tensor(fix, dtype=torch.float32)
who_t = torch.tensor(who)
dist_t = torch.tensor(dist, dtype=torch.float32)

optimizer = torch.optim.Adam(model.parameters(), lr=0.025)
for step in range(350):
    pick = torch.randint(0, N_FIXES, (512,))
    loss = nn.functional.smooth_l1_loss(model(fix_t[pick], who_t[pick]), dist_t[pick])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        print(f"{step:4d}  loss {loss.item():.3f}")

err = np.linalg.norm(model.position.detach().double().numpy() - true_pos, axis=1)
print(f"FINAL median beacon error {np.median(err):.3f} m")
