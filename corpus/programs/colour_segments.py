"""Per-pixel segmentation of noisy patches, depth of the net is configurable."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class SegNet(nn.Module):
    def __init__(self, channels=16, depth=3, classes=3):
        super().__init__()
        self.first = nn.Conv2d(2, channels, 3, padding=1)
        self.middle = [nn.Conv2d(channels, channels, 3, padding=1) for _ in range(depth)]
        self.norms = [nn.BatchNorm2d(channels) for _ in range(depth)]
        self.last = nn.Conv2d(channels, classes, 1)

    def forward(self, x):
        x = F.relu(self.first(x))
        for conv, norm in zip(self.middle, self.norms):
            x = F.relu(norm(conv(x)))
        return self.last(x)


def patches(n, s=14):
    yy, xx = torch.meshgrid(torch.arange(s).float(), torch.arange(s).float(), indexing="ij")
    mask = torch.zeros(n, s, s, dtype=torch.long)
    for cls in (1, 2):
        cy, cx = torch.rand(2, n, 1, 1) * s
        inside = (yy - cy) ** 2 + (xx - cx) ** 2 < 14
        mask[inside] = cls
    # class 1 is a fine checkerboard, class 2 a coarse one, the background is smooth
    fine = ((yy + xx) % 2) * 2 - 1
    coarse = (((yy // 2) + (xx // 2)) % 2) * 2 - 1
    sign = torch.randint(0, 2, (n, 1, 1)).float() * 2 - 1
    a = (mask == 1) * fine * sign + (mask == 2) * coarse * sign
    img = torch.stack([a, -a], 1) + 0.7 * torch.randn(n, 2, s, s)
    return img, mask


torch.manual_seed(18)
net = SegNet()
print("parameters:", sum(p.numel() for p in net.parameters()))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
vx, vm = patches(100)
for step in range(1, 301):
    x, m = patches(24)
    loss = F.cross_entropy(net(x), m)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 30 == 0:
        net.eval()
        with torch.no_grad():
            pred = net(vx).argmax(1)
        net.train()
        iou = [((pred == c) & (vm == c)).sum() / ((pred == c) | (vm == c)).sum().clamp(min=1) for c in range(3)]
        print(f"step {step} loss {loss.item():.3f} mean IoU {sum(iou).item() / 3:.3f}")
