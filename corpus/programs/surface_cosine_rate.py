"""Precise fit of a smooth surface with small batches, Adam."""
import torch
import torch.nn as nn


def surface(p):
    return torch.sin(2.5 * p[:, :1]) * p[:, 1:] + 0.4 * torch.cos(4 * p[:, 1:])


class Fit:
    def __init__(self, rate=0.02, batch=8):
        self.net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
        self.opt = torch.optim.Adam(self.net.parameters(), lr=rate)
        self.batch = batch

    def __call__(self, steps, report=300):
        sched = torch.optim.lr_scheduler.CosineAnnealingLR(self.opt, steps)
        grid = torch.rand(2000, 2) * 2 - 1
        acc = 0.0
        for s in range(1, steps + 1):
            p = torch.rand(self.batch, 2) * 2 - 1
            loss = (self.net(p) - surface(p)).pow(2).mean()
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            sched.step()
            acc += loss.item()
            if s % report == 0:
                with torch.no_grad():
                    test = (self.net(grid) - surface(grid)).pow(2).mean().item()
                print(f"{s:5d} train {acc / report:.5f} test {test:.5f}")
                acc = 0.0


torch.manual_seed(55)
Fit()(3600)
