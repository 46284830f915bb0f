"""Daily rain amount: never negative, exactly zero on many days, so the last layer is a ReLU."""
import torch
from torch import nn

torch.manual_seed(193)


def weather(n):
    humidity, pressure, wind = torch.rand(3, n)
    season = torch.rand(n) * 6.2832
    amount = 4 * humidity - 3 * pressure + 0.8 * torch.sin(season) + 0.5 * wind * humidity
    x = torch.stack([humidity, pressure, wind, season.sin(), season.cos()], 1) * 2 - 1
    return x, torch.clamp(amount + 0.05 * torch.randn(n), min=0.0)


class RainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU())
        self.amount = nn.Linear(32, 1)
        nn.init.constant_(self.amount.bias, 1.0)

    def forward(self, x):
        return torch.relu(self.amount(self.body(x))).squeeze(-1)


net = RainNet()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
for step in range(900):
    x, y = weather(96)
    loss = (net(x) - y).pow(2).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    if (step + 1) % 150 == 0:
        print(f"step {step + 1} mse {loss.item():.4f} dry days predicted {(net(x) == 0).float().mean():.2f} observed {(y == 0).float().mean():.2f}")
