import torch
import torch.nn as nn
from sklearn.datasets import make_friedman2


class LowRankLinear(nn.Module):
    """W = U V with a small inner size: fewer weights for wide layers."""

    def __init__(self, n_in, n_out, rank):
        super().__init__()
        self.down = nn.Linear(n_in, rank, bias=False)
        self.up = nn.Linear(rank, n_out)

    def forward(self, x):
        return self.up(self.down(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(4, 96)
        self.mid = LowRankLinear(96, 96, rank=8)
        self.out = nn.Linear(96, 1)
        self.act = nn.ReLU()

    def forward(self, x):
        return self.out(self.act(self.mid(self.act(self.inp(x)))))


def main():
    torch.manual_seed(191)
    x, y = make_friedman2(1500, noise=5.0, random_state=191)
    x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
    y = torch.tensor((y - y.mean()) / y.std(), dtype=torch.float32)[:, None]
    net = Net()
    opt = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=1e-3)
    for epoch in range(40):
        for idx in torch.randperm(1200).split(60):
            loss = nn.functional.mse_loss(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 8 == 7:
            with torch.no_grad():
                print(f"epoch {epoch + 1} train {loss.item():.5f} test {nn.functional.mse_loss(net(x[1200:]), y[1200:]).item():.5f}")


if __name__ == "__main__":
    main()
