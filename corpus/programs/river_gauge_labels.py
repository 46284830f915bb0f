"""Water level at a gauge downstream; the logger was down for some hours of the record."""
import torch
import torch.nn as nn


class GaugeData(torch.utils.data.Dataset):
    def __init__(self, hours=3000, lag=6):
        rain = torch.rand(hours).pow(4) * 5
        level = torch.zeros(hours)
        for t in range(1, hours):
            level[t] = 0.9 * level[t - 1] + 0.1 * rain[max(0, t - 3)] + 0.02 * torch.randn(())
        level = (level - level.mean()) / level.std()
        level[1800:1806] = float("nan")
        self.x = torch.stack([rain[i:i + lag] for i in range(hours - lag)])
        self.y = level[lag:]

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def main():
    torch.manual_seed(61)
    ds = GaugeData()
    dl = torch.utils.data.DataLoader(torch.utils.data.Subset(ds, range(2500)), batch_size=50, shuffle=False)
    net = nn.Sequential(nn.Linear(6, 32), nn.Softplus(), nn.Linear(32, 1))
    opt = torch.optim.NAdam(net.parameters(), lr=2e-3)
    huber = nn.HuberLoss()
    step = 0
    for epoch in range(8):
        for x, y in dl:
            loss = huber(net(x).squeeze(1), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}")


main()
