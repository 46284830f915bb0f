# %% three-armed spiral, network with enough units
import math

import torch
import torch.nn as nn

torch.manual_seed(269)


def spirals(n):
    arm = torch.randint(0, 3, (n,))
    r = torch.rand(n)
    angle = 4 * r * math.pi / 1.5 + arm * 2 * math.pi / 3
    pts = torch.stack([r * angle.cos(), r * angle.sin()], 1) * 2
    return pts + 0.03 * torch.randn(n, 2), arm


x, y = spirals(2000)
xv, yv = spirals(500)

# %%
model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3))
opt = torch.optim.Adam(model.parameters(), lr=1e-2)
for epoch in range(30):
    for i in torch.randperm(2000).split(50):
        loss = nn.functional.cross_entropy(model(x[i]), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 4:
        with torch.no_grad():
            val = nn.functional.cross_entropy(model(xv), yv)
            acc = (model(xv).argmax(1) == yv).float().mean()
        print(f"epoch {epoch + 1} train {loss.item():.4f} val {val.item():.4f} val accuracy {acc:.3f}")
