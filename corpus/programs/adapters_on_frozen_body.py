"""Bottleneck adapters on a frozen body that was trained for another task."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Adapter(nn.Module):
    def __init__(self, d, bottleneck=16):
        super().__init__()
        self.down, self.up = nn.Linear(d, bottleneck), nn.Linear(bottleneck, d)
        nn.init.normal_(self.up.weight, std=0.02)

    def forward(self, h):
        return h + self.up(F.relu(self.down(h)))


class Body(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.stem = nn.Linear(8, d)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(d, d), nn.ReLU()) for _ in range(3))
        self.adapters = nn.ModuleDict()
        self.head = nn.Linear(d, 4)

    def add_adapter(self):
        for k in range(len(self.blocks)):
            self.adapters[str(k)] = Adapter(self.head.in_features)

    def forward(self, x):
        h = F.relu(self.stem(x))
        for k, b in enumerate(self.blocks):
            h = b(h)
            if str(k) in self.adapters:
                h = self.adapters[str(k)](h)
        return self.head(h)


def linear_task(n):
    x = torch.randn(n, 8)
    return x, (x[:, :4] + 0.2 * x[:, 4:]).argmax(1)


def folded_task(n):
    x = torch.randn(n, 8)
    return x, x[:, :4].abs().argmax(1)


def loop(model, opt, task, steps, name):
    xv, yv = task(1000)
    for s in range(1, steps + 1):
        x, y = task(64)
        loss = F.cross_entropy(model(x), y)
        model.zero_grad()
        loss.backward()
        opt.step()
        if s % (steps // 6) == 0:
            with torch.no_grad():
                acc = (model(xv).argmax(1) == yv).float().mean().item()
            print(f"{name} {s} loss {loss.item():.3f} acc {acc:.3f}")


torch.manual_seed(24)
model = Body()
loop(model, torch.optim.Adam(model.parameters(), lr=1e-3), linear_task, 300, "pre-train")
for p in model.parameters():
    p.requires_grad_(False)
model.head = nn.Linear(48, 4)
opt = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)
model.add_adapter()
loop(model, opt, folded_task, 900, "adapters")
