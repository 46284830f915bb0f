"""Monthly passengers of an airport, forecast by a GRU from the last year."""
import math
import torch
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.gru = nn.GRU(1, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        out, _ = self.gru(x)
        return self.head(out[:, -1])


class Airport:
    """Passengers per month over the years."""

    def __init__(self, months=360):
        t = torch.arange(months).float()
        self.count = 1.6e6 + 2500 * t + 3e5 * torch.sin(2 * math.pi * t / 12) + 4e4 * torch.randn(months)
        self.mean, self.std = self.count[:280].mean(), self.count[:280].std()

    def windows(self, lo, hi, width=12):
        x = torch.stack([self.count[i:i + width] for i in range(lo, hi)]).unsqueeze(-1)
        y = torch.stack([self.count[i + width] for i in range(lo, hi)]).unsqueeze(-1)
        return (x - self.mean) / self.std, (y - self.mean) / self.std


torch.manual_seed(55)
airport = Airport()
x, y = airport.windows(0, 268)
xt, yt = airport.windows(268, 348)
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=5e-3)
for epoch in range(80):
    for b in torch.randperm(len(x)).split(45):
        loss = nn.functional.mse_loss(model(x[b]), y[b])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        opt.step()
    if epoch % 10 == 9:
        with torch.no_grad():
            rmse = nn.functional.mse_loss(model(xt), yt).sqrt()
        print(f"epoch {epoch + 1}: train rmse {loss.item() ** 0.5 * airport.std:,.0f} test rmse {rmse * airport.std:,.0f} passengers")
