"""Small images with horizontal, vertical or diagonal stripes of random phase and polarity."""
import math

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Stripes(Dataset):
    def __init__(self, n, size=12, seed=0):
        g = torch.Generator().manual_seed(seed)
        self.y = torch.randint(0, 3, (n,), generator=g)
        yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        dirs = torch.stack([yy, xx, (xx + yy) / math.sqrt(2)]).float()
        phase = torch.rand(n, 1, 1, generator=g) * 2 * math.pi
        self.x = torch.sin(dirs[self.y] * 1.6 + phase) + 0.5 * torch.randn(n, size, size, generator=g)

    def __len__(self):
        return len(self.y)

    def __getitem__(self, i):
        return self.x[i].unsqueeze(0), self.y[i]


class StripeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Conv2d(16, 16, 3),
            nn.ReLU(),
        )
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.classify = nn.Linear(64, 3)

    def forward(self, img):
        return self.classify(self.pool(self.features(img)).flatten(1))


def accuracy(net, loader):
    net.eval()
    good = total = 0
    with torch.no_grad():
        for img, lab in loader:
            good += (net(img).argmax(1) == lab).sum().item()
            total += len(lab)
    net.train()
    return good / total


if __name__ == "__main__":
    torch.manual_seed(5)
    train = DataLoader(Stripes(1200, seed=1), batch_size=40, shuffle=True)
    test = DataLoader(Stripes(400, seed=2), batch_size=200)
    net = StripeNet()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    lossf = nn.CrossEntropyLoss()
    for epoch in range(8):
        avg = 0.0
        for img, lab in train:
            loss = lossf(net(img), lab)
            opt.zero_grad()
            loss.backward()
            opt.step()
            avg += loss.item() / len(train)
        print(f"epoch {epoch + 1}: loss {avg:.4f}, test accuracy {accuracy(net, test):.3f}")
