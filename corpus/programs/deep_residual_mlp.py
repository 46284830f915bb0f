import torch
from torch import nn


class ResidualUnit(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.lin = nn.Linear(d, d)

    def forward(self, x):
        return x + 0.3 * torch.relu(self.lin(self.norm(x)))


class DeepNet(nn.Sequential):
    def __init__(self, d_in=10, d=24, depth=30):
        super().__init__(nn.Linear(d_in, d), *[ResidualUnit(d) for _ in range(depth)], nn.LayerNorm(d), nn.Linear(d, 1))


def friedman(n):
    x = torch.rand(n, 10)
    y = 10 * torch.sin(torch.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x * 2 - 1, (y - 14.4) / 5


if __name__ == "__main__":
    torch.manual_seed(151)
    x, y = friedman(3000)
    xt, yt = friedman(500)
    net = DeepNet()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    sched = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=3e-3, total_steps=350)
    for step in range(350):
        i = torch.randint(0, 3000, (64,))
        loss = nn.functional.mse_loss(net(x[i]).squeeze(1), y[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
        if step % 50 == 49:
            print(f"step {step + 1} mse {loss.item():.4f}")
    with torch.no_grad():
        print(f"test r2 {1 - nn.functional.mse_loss(net(xt).squeeze(1), yt) / yt.var():.3f}")
