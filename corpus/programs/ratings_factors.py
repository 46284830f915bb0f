"""Matrix factorisation of a synthetic ratings table."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset


class Ratings(Dataset):
    def __init__(self, user, item, value):
        self.user, self.item, self.value = user, item, value

    def __len__(self):
        return len(self.user)

    def __getitem__(self, i):
        return self.user[i], self.item[i], self.value[i]


class Factors(nn.Module):
    def __init__(self, users, items, k=8):
        super().__init__()
        self.u = nn.Embedding(users, k)
        self.v = nn.Embedding(items, k)
        self.bu = nn.Embedding(users, 1)
        self.bv = nn.Embedding(items, 1)
        self.mu = nn.Parameter(torch.zeros(()))
        for e in (self.u, self.v):
            nn.init.normal_(e.weight, std=0.3)
        for e in (self.bu, self.bv):
            nn.init.zeros_(e.weight)

    def forward(self, user, item):
        return (self.u(user) * self.v(item)).sum(1) + self.bu(user).squeeze(1) + self.bv(item).squeeze(1) + self.mu


def rmse(model, r):
    with torch.no_grad():
        return (model(r.user, r.item) - r.value).pow(2).mean().sqrt().item()


if __name__ == "__main__":
    torch.manual_seed(43)
    rng = np.random.default_rng(43)
    users, items = 150, 100
    table = 3.5 + rng.normal(size=(users, 3)) @ rng.normal(size=(3, items)) * 0.6 + rng.normal(size=(users, 1)) * 0.4
    u, i = rng.integers(users, size=6000), rng.integers(items, size=6000)
    value = torch.tensor(table[u, i] + 0.1 * rng.normal(size=6000), dtype=torch.float32)
    u, i = torch.from_numpy(u), torch.from_numpy(i)
    train, test = Ratings(u[:5000], i[:5000], value[:5000]), Ratings(u[5000:], i[5000:], value[5000:])
    model = Factors(users, items)
    opt = torch.optim.Adam(model.parameters(), lr=1e-5)
    for epoch in range(15):
        losses = []
        for user, item, r in DataLoader(train, batch_size=100, shuffle=True):
            loss = (model(user, item) - r).pow(2).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.item())
        print(f"epoch {epoch + 1} train mse {np.mean(losses):.4f} test rmse {rmse(model, test):.4f}")
