"""Bicycle demand from weather features, squared error written out."""
import torch
from torch import nn

torch.manual_seed(80)


def weather(n):
    x = torch.randn(n, 8)
    y = 5 + 2 * x[:, 0] - 1.5 * x[:, 1].abs() + x[:, 2] * x[:, 3] + 0.1 * torch.randn(n)
    return x, y


def squared_error(pred, target):
    return ((pred - target) ** 2).mean()


x, y = weather(3000)
xv, yv = weather(500)
net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
opt = torch.optim.Adam(net.parameters(), lr=2e-3)
for epoch in range(15):
    for idx in torch.randperm(3000).split(64):
        loss = squared_error(net(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 3 == 2:
        with torch.no_grad():
            out = net(xv)
            corr = torch.corrcoef(torch.stack([out.flatten(), yv]))[0, 1]
        print(f"epoch {epoch + 1} loss {loss.item():.3f} std of forecasts {out.std():.3f} of demand {yv.std():.3f} corr {corr:.3f}")
