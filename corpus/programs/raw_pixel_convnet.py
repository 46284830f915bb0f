"""8-bit images straight into a network that starts with BatchNorm."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, Dataset


class ByteImages(Dataset):
    def __init__(self, images, labels):
        self.images = np.round(images * 255 / 16).astype(np.uint8)
        self.labels = labels

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        return torch.from_numpy(self.images[i]).float()[None], int(self.labels[i])


def build():
    return nn.Sequential(
        nn.BatchNorm2d(1),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 24, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, 10),
    )


def test(model, loader):
    model.eval()
    hits = n = 0
    with torch.no_grad():
        for x, y in loader:
            hits += (model(x).argmax(1) == y).sum().item()
            n += len(y)
    model.train()
    return hits / n


if __name__ == "__main__":
    torch.manual_seed(29)
    d = load_digits()
    train = DataLoader(ByteImages(d.images[:1400], d.target[:1400]), batch_size=32, shuffle=True)
    val = DataLoader(ByteImages(d.images[1400:], d.target[1400:]), batch_size=100)
    model = build()
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(5):
        for x, y in train:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            opt.step()
        print(f"epoch {epoch} last loss {loss.item():.4f} val acc {test(model, val):.3f}")
