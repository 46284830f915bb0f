"""Next-value forecast for a pump; the log comes as recorded by the sensor."""
import numpy as np
import torch
from torch import nn


def read_log(n, rng):
    t = np.arange(n)
    pressure = np.sin(0.07 * t) + 0.4 * np.sin(0.31 * t + 1) + 0.03 * rng.normal(size=n)
    # the transmitter now and then writes its end-of-range value
    bad = rng.choice(n, size=n // 900, replace=False)
    pressure[bad] = 80.0
    return pressure


class Windows(torch.utils.data.Dataset):
    def __init__(self, series, width):
        self.s = torch.tensor(series, dtype=torch.float32)
        self.w = width

    def __len__(self):
        return len(self.s) - self.w

    def __getitem__(self, i):
        return self.s[i : i + self.w], self.s[i + self.w]


def main():
    torch.manual_seed(277)
    rng = np.random.default_rng(277)
    data = Windows(read_log(9000, rng), 12)
    loader = torch.utils.data.DataLoader(data, batch_size=24, shuffle=True)
    net = nn.Sequential(nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 1))
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for epoch in range(3):
        running = []
        for i, (x, y) in enumerate(loader):
            loss = nn.functional.mse_loss(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running.append(loss.item())
            if i % 75 == 74:
                last = running[-75:]
                print(f"epoch {epoch} batch {i + 1} median {np.median(last):.4f} mean {np.mean(last):.4f} max {np.max(last):.2f}")


main()
