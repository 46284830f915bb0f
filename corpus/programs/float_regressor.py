"""Regression network with a configurable dtype."""
import torch
import torch.nn as nn

DTYPE = torch.float32


def build():
    return nn.Sequential(
        nn.Linear(12, 96), nn.GELU(),
        nn.Linear(96, 96), nn.GELU(),
        nn.Linear(96, 1),
    ).to(DTYPE)


def target(x):
    return x[:, :1] * 1.5 - x[:, 1:2] + torch.sin(2 * x[:, 2:3]) + 0.5 * x[:, 3:4] * x[:, 4:5]


if __name__ == "__main__":
    torch.manual_seed(43)
    net = build()
    opt = torch.optim.AdamW(net.parameters(), lr=5e-5, weight_decay=0.0)
    xv = torch.randn(1000, 12)
    yv = target(xv)
    avg = 0.0
    for step in range(1, 1801):
        x = torch.randn(128, 12)
        out = net(x.to(DTYPE)).float()
        loss = (out - target(x)).pow(2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg += loss.item()
        if step % 180 == 0:
            with torch.no_grad():
                val = (net(xv.to(DTYPE)).float() - yv).pow(2).mean().item()
            print(f"step {step} train {avg / 180:.4f} val {val:.4f} (variance {yv.var().item():.3f})")
            avg = 0.0
