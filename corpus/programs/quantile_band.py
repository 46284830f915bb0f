import torch
from torch import nn

LEVELS = torch.tensor([0.1, 0.5, 0.9])


def pinball(pred, target):
    diff = target - pred
    return torch.maximum(LEVELS * diff, (LEVELS - 1) * diff).mean()


class QuantileNet(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(1, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh())
        self.low = nn.Linear(width, 1)
        self.gaps = nn.Linear(width, 2)

    def forward(self, x):
        h = self.trunk(x)
        steps = nn.functional.softplus(self.gaps(h))
        return torch.cat([self.low(h), steps], dim=1).cumsum(1)


def sample(n):
    x = torch.rand(n, 1) * 6 - 3
    return x, torch.sin(x) * 2 + (0.2 + 0.3 * (x + 3) / 3) * torch.randn(n, 1)


torch.manual_seed(223)
x, y = sample(3000)
model = QuantileNet()
optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
for epoch in range(40):
    order = torch.randperm(len(x))
    for rows in order.view(-1, 100):
        loss = pinball(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 8 == 7:
        with torch.no_grad():
            xv, yv = sample(3000)
            cover = (yv < model(xv)).float().mean(0)
        print(f"epoch {epoch + 1} pinball {loss.item():.4f} share below 0.1/0.5/0.9: " + "/".join(f"{c:.2f}" for c in cover))
