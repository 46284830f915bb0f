"""Count-like regression on small images; predictions are made image by image."""
import torch
import torch.nn as nn


def blobs(n, size=16):
    yy, xx = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    img = 0.05 * torch.randn(n, 1, size, size)
    count = torch.randint(0, 7, (n,))
    for k in range(6):
        cy, cx = torch.rand(2, n, 1, 1) * (size - 2) + 1
        spot = torch.exp(-((yy - cy) ** 2 + (xx - cx) ** 2) / 3)
        img[:, 0] += spot * (count > k).float()[:, None, None]
    return img, count.float()


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, padding=1, stride=2), nn.BatchNorm2d(16), nn.ReLU(),
        )
        self.out = nn.Linear(16, 1)

    def forward(self, img):
        return self.out(self.conv(img).sum((2, 3)) / 4).squeeze(-1)


@torch.no_grad()
def predict(model, images):
    model.eval()
    return torch.cat([model(im.unsqueeze(0)) for im in images])


def main():
    torch.manual_seed(3)
    x, y = blobs(1000)
    xt, yt = blobs(150)
    model = Counter()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for epoch in range(12):
        model.train()
        tot = 0.0
        for idx in torch.randperm(len(x)).split(50):
            loss = (model(x[idx]) - y[idx]).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            tot += loss.item() * len(idx) / len(x)
        if epoch % 3 == 2:
            err = (predict(model, xt) - yt).pow(2).mean().item()
            print(f"epoch {epoch + 1} train mse {tot:.3f} test mse {err:.3f}")
    print("variance of the counts", round(yt.var().item(), 3))


if __name__ == "__main__":
    main()
