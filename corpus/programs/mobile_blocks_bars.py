"""Tiny depthwise-separable network (MobileNet style, ReLU6) that tells horizontal, vertical and diagonal stripes apart."""
import torch
from torch import nn


def stripes(n):
    kind = torch.randint(0, 4, (n,))
    yy, xx = torch.meshgrid(torch.arange(12.0), torch.arange(12.0), indexing="ij")
    coords = torch.stack([yy, xx, yy + xx, yy - xx])
    phase = torch.rand(n, 1, 1) * 6.28
    img = torch.sin(coords[kind] * 1.6 + phase) + 0.8 * torch.randn(n, 12, 12)
    return img.unsqueeze(1), kind


def separable(cin, cout, stride):
    return nn.Sequential(
        nn.Conv2d(cin, cin, 3, stride, 1, groups=cin, bias=False),
        nn.BatchNorm2d(cin),
        nn.ReLU6(inplace=True),
        nn.Conv2d(cin, cout, 1, bias=False),
        nn.BatchNorm2d(cout),
        nn.ReLU6(inplace=True),
    )


class MiniMobileNet(nn.Module):
    def __init__(self, n_classes=4):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, 1, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6(inplace=True),
            separable(8, 16, 2), separable(16, 24, 2),
        )
        self.classifier = nn.Linear(24, n_classes)

    def forward(self, x):
        return self.classifier(self.features(x).mean((2, 3)))


if __name__ == "__main__":
    torch.manual_seed(6)
    model = MiniMobileNet()
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3, momentum=0.5)
    loss_fn = nn.CrossEntropyLoss()
    for step in range(1, 251):
        x, y = stripes(48)
        loss = loss_fn(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}")
    model.eval()
    x, y = stripes(500)
    with torch.no_grad():
        print("accuracy", (model(x).argmax(1) == y).float().mean().item())
