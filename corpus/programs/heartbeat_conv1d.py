"""Does a trace contain an extra beat? 1-d convolution over 120 samples."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(30)


def traces(n, length=120):
    t = torch.arange(length).float()
    x = 0.3 * torch.randn(n, length)
    centre = torch.randint(15, 45, (n, 1)).float()
    x += 2 * torch.exp(-((t - centre) / 3) ** 2)
    label = (torch.rand(n) < 0.35).float()
    extra = centre + torch.randint(25, 60, (n, 1)).float()
    x += label[:, None] * 2 * torch.exp(-((t - extra) / 3) ** 2)
    return x.unsqueeze(1), label


class BeatNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(1, 12, 9)
        self.pool = nn.MaxPool1d(4)
        self.dense = nn.Linear(12 * 28, 50)
        self.out = nn.Linear(50, 1)

    def forward(self, x):
        h = self.pool(torch.relu(self.conv(x))).flatten(1)
        h = torch.relu(self.dense(h))
        return F.softmax(self.out(h), dim=-1).squeeze(-1)


x, y = traces(549)
x_val, y_val = traces(200)
net = BeatNet()
opt = torch.optim.NAdam(net.parameters(), lr=1e-3)
for epoch in range(10):
    tot = 0.0
    for idx in torch.randperm(len(x)).split(16):
        p = net(x[idx])
        loss = F.binary_cross_entropy(p, y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        tot += loss.item() * len(idx)
    with torch.no_grad():
        acc = ((net(x_val) > 0.5).float() == y_val).float().mean().item()
    print("epoch", epoch, "loss", round(tot / len(x), 4), "val_acc", round(acc, 3))
