"""Wine cultivars; the network returns log-probabilities."""
import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset, random_split


class LogProbNet(nn.Module):
    def __init__(self, d, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.scores = nn.Linear(32, classes)
        self.log_prob = nn.LogSoftmax(dim=0)

    def forward(self, x):
        return self.log_prob(self.scores(self.body(x)))


def train(seed_data=2):
    wine = load_wine()
    x = torch.tensor(StandardScaler().fit_transform(wine.data), dtype=torch.float32)
    y = torch.tensor(wine.target)
    gen = torch.Generator().manual_seed(seed_data)
    tr, te = random_split(TensorDataset(x, y), [130, 48], generator=gen)
    net = LogProbNet(13, 3)
    nll = nn.NLLLoss()
    opt = torch.optim.Adam(net.parameters(), lr=3e-3)
    loader = DataLoader(tr, batch_size=26, shuffle=True)
    xt, yt = te[:]
    for epoch in range(60):
        total = 0.0
        for xb, yb in loader:
            opt.zero_grad()
            loss = nll(net(xb), yb)
            loss.backward()
            opt.step()
            total += loss.item()
        if epoch % 6 == 5:
            with torch.no_grad():
                lp = net(xt)
            acc = (lp.argmax(1) == yt).float().mean().item()
            print(f"epoch {epoch + 1}: loss {total / len(loader):.4f} test nll {nll(lp, yt).item():.4f} acc {acc:.3f}")


torch.manual_seed(8)
train()
