"""Segment bright discs (about 5 % of the pixels) with a small encoder-decoder and evaluate every 40 steps."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def scenes(n, size=20):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    c = torch.randint(3, size - 3, (n, 2, 1, 1))
    r = torch.randint(2, 4, (n, 1, 1))
    mask = ((yy - c[:, 0]) ** 2 + (xx - c[:, 1]) ** 2 <= r**2).float()
    img = 0.8 * mask + 0.4 * torch.randn(n, size, size)
    return img[:, None], mask[:, None]


class SegNet(nn.Module):
    def __init__(self, c=10):
        super().__init__()
        self.down1 = nn.Conv2d(1, c, 3, padding=1)
        self.down2 = nn.Conv2d(c, 2 * c, 3, padding=1)
        self.up = nn.ConvTranspose2d(2 * c, c, 2, stride=2)
        self.fuse = nn.Conv2d(2 * c, c, 3, padding=1)
        self.head = nn.Conv2d(c, 1, 1)

    def forward(self, x):
        a = F.relu(self.down1(x))
        b = F.relu(self.down2(F.max_pool2d(a, 2)))
        return self.head(F.relu(self.fuse(torch.cat([a, self.up(b)], 1))))


@torch.no_grad()
def iou(model, x, y):
    model.eval()
    p = model(x) > 0
    model.train()
    return ((p & (y > 0)).sum() / (p | (y > 0)).sum()).item()


if __name__ == "__main__":
    torch.manual_seed(241)
    model, opt = (m := SegNet()), torch.optim.Adam(m.parameters(), lr=5e-3)
    xv, yv = scenes(100)
    for step in range(1, 201):
        x, y = scenes(12)
        loss = F.binary_cross_entropy_with_logits(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 40 == 0:
            print(f"step {step} bce {loss.item():.4f} iou {iou(model, xv, yv):.3f}")
