"""Recommender by matrix factorisation; sparse Adam for the factors, SGD for the biases."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

N_USERS, N_ITEMS, RANK = 200, 120, 3


class MF(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.user = nn.Embedding(N_USERS, k, sparse=True)
        self.item = nn.Embedding(N_ITEMS, k, sparse=True)
        self.user_bias = nn.Parameter(torch.zeros(N_USERS))
        self.item_bias = nn.Parameter(torch.zeros(N_ITEMS))
        self.mu = nn.Parameter(torch.tensor(3.0))
        for e in (self.user, self.item):
            nn.init.normal_(e.weight, std=0.3)

    def forward(self, u, i):
        return (self.user(u) * self.item(i)).sum(1) + self.user_bias[u] + self.item_bias[i] + self.mu


def ratings(n):
    p, q = torch.randn(N_USERS, RANK) * 0.6, torch.randn(N_ITEMS, RANK) * 0.6
    bu, bi = torch.randn(N_USERS) * 0.3, torch.randn(N_ITEMS) * 0.3
    u, i = torch.randint(0, N_USERS, (n,)), torch.randint(0, N_ITEMS, (n,))
    r = 3.2 + (p[u] * q[i]).sum(1) + bu[u] + bi[i] + 0.1 * torch.randn(n)
    return u, i, r


torch.manual_seed(181)
u, i, r = ratings(12000)
train = DataLoader(TensorDataset(u[:10000], i[:10000], r[:10000]), batch_size=100, shuffle=True)
model = MF(6)
factors = torch.optim.SparseAdam([*model.user.parameters(), *model.item.parameters()], lr=2e-2)
biases = torch.optim.SGD([{"params": [model.user_bias, model.item_bias], "lr": 1.0}, {"params": [model.mu], "lr": 0.02}])
for epoch in range(10):
    se = 0.0
    for ub, ib, rb in train:
        loss = (model(ub, ib) - rb).square().mean()
        factors.zero_grad()
        biases.zero_grad()
        loss.backward()
        factors.step()
        biases.step()
        se += loss.item()
    with torch.no_grad():
        test = (model(u[10000:], i[10000:]) - r[10000:]).square().mean().sqrt()
    print(f"epoch {epoch} train rmse {(se / len(train)) ** 0.5:.3f} test rmse {test:.3f} (spread {r.std():.3f})")
