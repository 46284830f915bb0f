"""Small-object scorer: backbone with frozen first stages and a trainable head."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def conv_stage(a, b):
    return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


class Backbone(nn.Module):
    def __init__(self, frozen_stages=0):
        super().__init__()
        self.stage1, self.stage2, self.stage3 = conv_stage(1, 4), conv_stage(4, 4), conv_stage(4, 16)
        self._freeze(frozen_stages)

    def _freeze(self, n):
        # keep the generic low-level filters
        for stage in [self.stage1, self.stage2, self.stage3][:n]:
            for p in stage.parameters():
                p.requires_grad = False

    def forward(self, x):
        return self.stage3(self.stage2(self.stage1(x))).flatten(1)


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.fc = nn.Linear(64, 4)

    def forward(self, x):
        return self.fc(self.backbone(x))


def scenes(n, size=16):
    x = 0.6 * torch.randn(n, 1, size, size)
    y = torch.randint(0, 4, (n,))
    shapes = torch.tensor([[[1, 1, 1], [0, 0, 0], [-1, -1, -1]], [[1, 0, -1]] * 3,
                           [[-1, -1, -1], [0, 0, 0], [1, 1, 1]], [[-1, 0, 1]] * 3]).float() * 2.0
    for i in range(n):
        r, c = torch.randint(0, size - 3, (2,)).tolist()
        x[i, 0, r:r + 3, c:c + 3] += shapes[y[i]]
    return x, y


def main():
    torch.manual_seed(32)
    x, y = scenes(1200)
    xv, yv = scenes(400)
    net = Scorer()
    opt = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=4e-3)
    for epoch in range(20):
        run = 0.0
        for idx in torch.randperm(1200).split(50):
            loss = F.cross_entropy(net(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            run += loss.item() / 24
        if epoch % 2:
            with torch.no_grad():
                acc = (net(xv).argmax(1) == yv).float().mean().item()
            print(f"epoch {epoch + 1} loss {run:.3f} val acc {acc:.3f}")


main()
