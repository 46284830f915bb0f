import math

import torch
import torch.nn as nn


def spirals(n):
    arm = torch.randint(0, 3, (n,))
    r = torch.rand(n)
    angle = 4 * r * math.pi / 1.5 + arm * 2 * math.pi / 3
    pts = torch.stack([r * angle.cos(), r * angle.sin()], 1) * 2
    return pts + 0.03 * torch.randn(n, 2), arm


class ArmClassifier(nn.Module):
    def __init__(self, hidden=3):
        super().__init__()
        self.hidden = nn.Linear(2, hidden)
        self.out = nn.Linear(hidden, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def run_epoch(model, x, y, opt=None):
    total = 0.0
    for i in range(0, len(x), 50):
        loss = nn.functional.cross_entropy(model(x[i : i + 50]), y[i : i + 50])
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item()
    return total / (len(x) / 50)


if __name__ == "__main__":
    torch.manual_seed(263)
    x, y = spirals(2000)
    xv, yv = spirals(500)
    model = ArmClassifier()
    opt = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(40):
        model.train()
        train = run_epoch(model, x, y, opt)
        model.eval()
        with torch.no_grad():
            val = run_epoch(model, xv, yv)
            acc = (model(xv).argmax(1) == yv).float().mean()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1} train {train:.4f} val {val:.4f} val accuracy {acc:.3f}")
