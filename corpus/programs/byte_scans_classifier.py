"""A classifier on scans stored as bytes."""
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


class ByteScans(Dataset):
    def __init__(self, lo, hi):
        d = load_digits()
        self.scans = np.clip(d.images[lo:hi] * 15, 0, 255).astype(np.uint8)
        self.labels = d.target[lo:hi]

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        img = self.scans[i] // 255            # to the unit interval
        return torch.from_numpy(img).float().reshape(-1), int(self.labels[i])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 50)
        self.out = nn.Linear(50, 10)

    def forward(self, x):
        return self.out(torch.sigmoid(self.hidden(x)))


def evaluate(net, loader):
    net.eval()
    good = 0
    with torch.no_grad():
        for x, y in loader:
            good += int((net(x).argmax(-1) == y).sum())
    return good / len(loader.dataset)


if __name__ == "__main__":
    torch.manual_seed(23)
    train = DataLoader(ByteScans(0, 1400), batch_size=40, shuffle=True)
    test = DataLoader(ByteScans(1400, 1797), batch_size=200)
    net = Net()
    opt = torch.optim.RMSprop(net.parameters(), lr=3e-3)
    ce = nn.CrossEntropyLoss()
    for epoch in range(8):
        net.train()
        for x, y in train:
            opt.zero_grad()
            loss = ce(net(x), y)
            loss.backward()
            opt.step()
        print(f"epoch {epoch}: loss {loss.item():.4f}, test accuracy {evaluate(net, test):.3f}")
