"""Dense network for 8x8 grey-level digits, stored as 0..255 like in the csv."""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Dense(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.fc1 = nn.Linear(64, 24)
        self.fc2 = nn.Linear(24, hidden)
        self.fc3 = nn.Linear(hidden, 10)

    def forward(self, x):
        x = torch.tanh(self.fc1(x))
        x = torch.tanh(self.fc2(x))
        return self.fc3(x)


def load():
    d = load_digits()
    pixels = np.round(d.images.reshape(-1, 64) * 255 / 16)
    return torch.tensor(pixels, dtype=torch.float), torch.tensor(d.target)


def run(epochs=25, batch=32):
    torch.manual_seed(1234)
    x, y = load()
    perm = torch.randperm(len(x))
    tr, te = perm[:1400], perm[1400:]
    net = Dense(16)
    optim = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(epochs):
        shuffled = tr[torch.randperm(len(tr))]
        for i in range(0, len(tr), batch):
            b = shuffled[i:i + batch]
            optim.zero_grad()
            loss = F.cross_entropy(net(x[b]), y[b])
            loss.backward()
            optim.step()
        if epoch % 5 == 4:
            with torch.no_grad():
                out = net(x[te])
            print(f"epoch {epoch + 1} test loss {F.cross_entropy(out, y[te]):.3f} acc {(out.argmax(1) == y[te]).float().mean():.3f}")


run()
