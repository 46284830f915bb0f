"""Univariate forecasting with an LSTM: the next value of a modulated sine."""
import math
import warnings

import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

warnings.filterwarnings("ignore")


class SineWindows(Dataset):
    def __init__(self, n=2000, width=24):
        t = torch.arange(n + width).float()
        self.series = torch.sin(2 * math.pi * t / 17) * (1 + 0.4 * torch.sin(2 * math.pi * t / 111)) + 0.05 * torch.randn(n + width)
        self.n, self.width = n, width

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return self.series[i:i + self.width].unsqueeze(-1), self.series[i + self.width].unsqueeze(-1)


class Model(nn.Module):
    def __init__(self, hidden=40):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden, batch_first=True)
        self.dense = nn.Sequential(nn.Linear(hidden, 20), nn.ReLU(), nn.Linear(20, 1))

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.dense(out[:, -1]).squeeze()


def train(model, loader, epochs):
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        losses = []
        for x, y in loader:
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1:2d} mse {sum(losses) / len(losses):.4f}")


if __name__ == "__main__":
    torch.manual_seed(81)
    ds = SineWindows()
    model = Model()
    train(model, DataLoader(ds, batch_size=50, shuffle=True), epochs=8)
    with torch.no_grad():
        x = torch.stack([ds[i][0] for i in range(0, 2000, 10)])
        y = torch.stack([ds[i][1] for i in range(0, 2000, 10)]).flatten()
        p = model(x)
    print(f"forecast std {p.std():.3f}, real std {y.std():.3f}, mse {(p - y).pow(2).mean():.4f}")
