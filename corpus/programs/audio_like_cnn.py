"""Ten classes of spectrogram-like patches, small CNN, SGD."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def patches(n, templates):
    y = torch.randint(0, 10, (n,))
    gain = 0.5 + torch.rand(n, 1, 1)
    x = gain * templates[y] + 0.8 * torch.randn(n, 16, 16)
    return x[:, None], y


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.fc = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def forward(self, x):
        return self.fc(self.conv(x))


def main():
    torch.manual_seed(271)
    templates = nn.functional.avg_pool2d(torch.randn(10, 1, 16, 16), 3, 1, 1)[:, 0] * 2
    train = DataLoader(TensorDataset(*patches(2400, templates)), batch_size=32, shuffle=True)
    xv, yv = patches(400, templates)
    model = PatchNet()
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    epochs = 3
    step = 0
    for epoch in range(epochs):
        for x, y in train:
            loss = nn.functional.cross_entropy(model(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            step += 1
            if step % 25 == 0:
                print(f"step {step} loss {loss.item():.4f}")
        with torch.no_grad():
            print(f"epoch {epoch} validation accuracy {(model(xv).argmax(1) == yv).float().mean():.3f}")


main()
