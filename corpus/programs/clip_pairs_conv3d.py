# two kinds of short video clips: bright ones and dark ones, with a little flicker
import torch
from torch import nn

torch.manual_seed(4)


def clips(n, level):
    return level + 0.1 * torch.randn(n, 1, 1, 1, 1) + 0.1 * torch.randn(n, 1, 4, 8, 8)


bright, dark = clips(150, 0.65), clips(150, 0.35)
test_x = torch.cat([clips(100, 0.65), clips(100, 0.35)])
test_y = torch.cat([torch.ones(100), torch.zeros(100)]).long()


def generator(batch=10):
    while True:
        for i in range(0, 150, batch):
            yield bright[i:i + batch], torch.ones(batch, dtype=torch.long)
        for i in range(0, 150, batch):
            yield dark[i:i + batch], torch.zeros(batch, dtype=torch.long)


net = nn.Sequential(
    nn.Conv3d(1, 6, 3, padding=1), nn.ReLU(), nn.AvgPool3d(2),
    nn.Conv3d(6, 8, (2, 3, 3)), nn.ReLU(), nn.Flatten(), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
lossf = nn.CrossEntropyLoss()
gen = generator()
for step in range(600):
    x, y = next(gen)
    loss = lossf(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 15 == 14 and step > 480 or step % 60 == 59:
        with torch.no_grad():
            acc = (net(test_x).argmax(1) == test_y).float().mean().item()
        print(f"step {step + 1} loss {loss.item():.4f} accuracy {acc:.3f}")
