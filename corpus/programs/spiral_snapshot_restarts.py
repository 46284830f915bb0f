import copy
import math

import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts


def two_spirals(n, noise=0.15):
    t = torch.sqrt(torch.rand(n, 1)) * 3 * math.pi
    label = torch.randint(0, 2, (n, 1)).float()
    sign = 1 - 2 * label
    xy = torch.cat([sign * t * t.cos(), sign * t * t.sin()], 1) / 4
    return xy + noise * torch.randn(n, 2) / 2, label


class SnapshotEnsemble:
    """Cosine restarts; a copy of the weights is taken at the bottom of every cycle."""

    def __init__(self, net, lr, cycle):
        self.net = net
        self.opt = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
        self.sched = CosineAnnealingWarmRestarts(self.opt, T_0=cycle)
        self.cycle = cycle
        self.members = []

    def fit(self, x, y, steps):
        loss_fn = nn.BCEWithLogitsLoss()
        for i in range(steps):
            sel = torch.randint(0, len(x), (128,))
            loss = loss_fn(self.net(x[sel]), y[sel])
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            self.sched.step()
            if (i + 1) % self.cycle == 0:
                self.members.append(copy.deepcopy(self.net).eval())
                print(f"snapshot {len(self.members)} at step {i + 1}: loss {loss.item():.4f}")

    @torch.no_grad()
    def predict(self, x):
        return torch.stack([torch.sigmoid(m(x)) for m in self.members[-3:]]).mean(0)


torch.manual_seed(31)
x, y = two_spirals(1500)
xt, yt = two_spirals(600)
net = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
ens = SnapshotEnsemble(net, lr=0.3, cycle=350)
ens.fit(x, y, steps=2100)
print(f"ensemble accuracy {((ens.predict(xt) > 0.5) == (yt > 0.5)).float().mean():.3f}")
