"""Segment small bright blobs (about 3 % of the pixels) in noisy pictures."""
import torch
from torch import nn


class TinyUNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, c, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.mid = nn.Sequential(nn.Conv2d(c, 2 * c, 3, padding=1), nn.ReLU())
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.skip = nn.Conv2d(1, c, 3, padding=1)
        self.last = nn.Conv2d(2 * c, 1, 3, padding=1)

    def forward(self, x):
        up = torch.relu(self.up(self.mid(self.down(x))))
        return self.last(torch.cat([up, torch.relu(self.skip(x))], 1))


def pictures(n, size=16):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    cy, cx = torch.randint(2, 14, (2, n, 1, 1))
    mask = (((yy - cy) ** 2 + (xx - cx) ** 2) <= 3).float().unsqueeze(1)
    return mask + 0.4 * torch.randn_like(mask), mask


def dice(pred, mask):
    return (2 * (pred * mask).sum() / (pred.sum() + mask.sum() + 1e-6)).item()


torch.manual_seed(74)
net = TinyUNet()
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
criterion = nn.BCEWithLogitsLoss()
for it in range(1, 401):
    img, mask = pictures(16)
    out = net(img)
    loss = criterion(out, mask)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 0:
        net.eval()
        with torch.no_grad():
            img, mask = pictures(64)
            score = dice((net(img) > 0).float(), mask)
        net.train()
        print(f"iteration {it}  bce {loss.item():.4f}  dice {score:.3f}")
