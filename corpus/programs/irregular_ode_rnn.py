"""Irregularly sampled decaying signals: ODE steps between observations, GRU cell at observations."""
import torch
import torch.nn as nn

torch.manual_seed(31)


class ODEFunc(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 32), nn.Tanh(), nn.Linear(32, dim))

    def forward(self, h):
        return self.net(h)


class ODERNN(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.dim = dim
        self.func = ODEFunc(dim)
        self.cell = nn.GRUCell(1, dim)
        self.readout = nn.Linear(dim, 1)

    def forward(self, values, gaps, substeps=3):
        h = torch.zeros(len(values), self.dim)
        for t in range(values.shape[1]):
            dt = gaps[:, t:t + 1] / substeps
            for _ in range(substeps):
                h = h + dt * self.func(h)
            h = self.cell(values[:, t:t + 1], h.detach())
        return self.readout(h).squeeze(-1)


def signals(n, length=10):
    """The class is the product of the signs of two early samples."""
    gaps = 0.2 + torch.rand(n, length)
    times = gaps.cumsum(1)
    rate = torch.rand(n, 1) * 0.5
    phase = torch.rand(n, 1) * 6.28
    v = torch.exp(-rate * times) * torch.sin(times + phase)
    y = (v[:, 1] > 0).float()
    return v + 0.05 * torch.randn_like(v), gaps, y


model = ODERNN()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
bce = nn.BCEWithLogitsLoss()
vt, gt, yt = signals(400)
for step in range(1, 301):
    v, g, y = signals(64)
    loss = bce(model(v, g), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        with torch.no_grad():
            acc = ((model(vt, gt) > 0).float() == yt).float().mean()
        print(f"step {step:3d} bce {loss.item():.3f} acc {acc:.3f}")
