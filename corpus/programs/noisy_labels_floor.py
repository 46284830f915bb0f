"""35 % of the labels are flipped at random by the annotators. The best possible loss is known."""
import math

import torch
from torch import nn

FLIP = 0.35


def annotate(y):
    return torch.where(torch.rand(len(y)) < FLIP, 1 - y, y)


def draw(n):
    x = torch.randn(n, 6)
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).float()
    return x, y


def main():
    torch.manual_seed(197)
    best = -(FLIP * math.log(FLIP) + (1 - FLIP) * math.log(1 - FLIP))
    print(f"floor of the loss {best:.4f}, chance {math.log(2):.4f}")
    net = nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    avg = 0.0
    for step in range(1, 1501):
        x, y = draw(128)
        loss = nn.functional.binary_cross_entropy_with_logits(net(x).squeeze(1), annotate(y))
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg += loss.item()
        if step % 250 == 0:
            with torch.no_grad():
                xv, yv = draw(2000)
                acc = ((net(xv).squeeze(1) > 0).float() == yv).float().mean()
            print(f"step {step} loss {avg / 250:.4f} accuracy against the true labels {acc:.3f}")
            avg = 0.0


if __name__ == "__main__":
    main()
