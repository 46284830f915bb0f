"""Patch-wise detector: every cell of a 4x4 grid is background (0) or one of three shapes."""
import torch
from torch import nn

BACKGROUND = 0
SHAPES = ["cross", "square", "bar"]
NUM_CLASSES = len(SHAPES) + 1


def draw(kind):
    p = torch.zeros(5, 5)
    if kind == "cross":
        p[2, :] = p[:, 2] = 1
    elif kind == "square":
        p[1:4, 1:4] = 1
        p[2, 2] = 0
    else:
        p[:, 1] = 1
    return p


STAMPS = [draw(s) for s in SHAPES]


def scene():
    img = 0.25 * torch.randn(20, 20)
    grid = torch.full((4, 4), BACKGROUND)
    for _ in range(5):
        r, c = torch.randint(4, (2,)).tolist()
        k = torch.randint(len(SHAPES), (1,)).item()
        img[5 * r:5 * r + 5, 5 * c:5 * c + 5] = STAMPS[k] + 0.25 * torch.randn(5, 5)
        grid[r, c] = k
    return img[None], grid


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 16, 5, stride=5), nn.ReLU(), nn.Conv2d(16, 32, 1), nn.ReLU())
        self.cls = nn.Conv2d(32, NUM_CLASSES, 1)

    def forward(self, x):
        return self.cls(self.backbone(x))


def main():
    torch.manual_seed(40)
    data = [scene() for _ in range(600)]
    imgs, grids = torch.stack([d[0] for d in data]), torch.stack([d[1] for d in data])
    net = Detector()
    opt = torch.optim.AdamW(net.parameters(), lr=3e-3)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(12):
        total = 0
        for b in torch.randperm(500).split(25):
            opt.zero_grad()
            loss = loss_fn(net(imgs[b]), grids[b])
            loss.backward()
            opt.step()
            total += loss.item()
        print(f"epoch {epoch} loss {total / 20:.4f}")
    with torch.no_grad():
        guess = net(imgs[500:]).argmax(1)
    for k, name in enumerate(["background"] + SHAPES):
        print(f"detected {name:10s} {(guess == k).sum().item():5d}")


if __name__ == "__main__":
    main()
