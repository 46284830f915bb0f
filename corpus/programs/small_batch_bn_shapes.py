"""Circles, squares and crosses; memory allows batches of eight images only, BatchNorm still has plenty of pixels."""
import torch
from torch import nn


def shape_image(kind):
    yy, xx = torch.meshgrid(torch.arange(14.0), torch.arange(14.0), indexing="ij")
    cy, cx = 5 + 4 * torch.rand(2)
    r = 2.5 + 1.5 * torch.rand(1)
    dy, dx = (yy - cy).abs(), (xx - cx).abs()
    if kind == 0:
        m = ((dy**2 + dx**2).sqrt() - r).abs() < 0.8
    elif kind == 1:
        m = (torch.maximum(dy, dx) - r).abs() < 0.8
    else:
        m = (dy - dx).abs().lt(0.8) & torch.maximum(dy, dx).lt(r)
    return m.float() + 0.2 * torch.randn(14, 14)


class ShapeData(torch.utils.data.Dataset):
    def __init__(self, n):
        self.y = torch.randint(0, 3, (n,))
        self.x = torch.stack([shape_image(k) for k in self.y.tolist()])[:, None]

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i], self.y[i]


def conv_bn(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(), nn.MaxPool2d(2))


torch.manual_seed(113)
train, test = ShapeData(600), ShapeData(150)
loader = torch.utils.data.DataLoader(train, batch_size=8, shuffle=True)
net = nn.Sequential(conv_bn(1, 12), conv_bn(12, 24), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 3))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 6 * len(loader))
ce = nn.CrossEntropyLoss()
for epoch in range(6):
    net.train()
    total = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = ce(net(x), y)
        loss.backward()
        opt.step()
        sched.step()
        total += loss.item()
    net.eval()
    with torch.no_grad():
        acc = (net(test.x).argmax(1) == test.y).float().mean()
    print(f"epoch {epoch}: train loss {total / len(loader):.4f}, test accuracy {acc:.3f}")
