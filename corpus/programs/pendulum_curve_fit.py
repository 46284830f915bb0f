"""Fit the swing of a damped pendulum, position as a function of time."""
import torch
import torch.nn as nn


class CurveNet(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.norm = nn.LayerNorm(1)
        self.inner = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.outer = nn.Linear(width, 1)

    def forward(self, t):
        return self.outer(self.inner(self.norm(t)))


def pendulum(t):
    return torch.exp(-0.4 * t.abs()) * torch.cos(3 * t)


def main():
    torch.manual_seed(18)
    t = 4 * torch.rand(800, 1) - 2
    y = pendulum(t) + 0.02 * torch.randn_like(t)
    net = CurveNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(opt, patience=20)
    for epoch in range(100):
        order = torch.randperm(800)
        total = 0.0
        for k in range(0, 800, 100):
            b = order[k:k + 100]
            loss = nn.functional.mse_loss(net(t[b]), y[b])
            opt.zero_grad(); loss.backward(); opt.step()
            total += loss.item() / 8
        plateau.step(total)
        if epoch % 20 == 19:
            print(f"epoch {epoch + 1}: mse {total:.5f}  (variance of y {y.var():.5f})")


main()
