import math
import torch
from torch import nn


def real(n):
    k = torch.randint(0, 6, (n,)).float() * (2 * math.pi / 6)
    return torch.stack([k.cos(), k.sin()], 1) * 1.5 + 0.1 * torch.randn(n, 2)


def mmd(a, b):
    def k(u, v):
        return torch.exp(-(torch.cdist(u, v) ** 2) / 0.5).mean()

    return (k(a, a) + k(b, b) - 2 * k(a, b)).item()


torch.manual_seed(8)
G = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
D = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
g_opt = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
d_opt = torch.optim.Adam(D.parameters(), lr=2e-3, betas=(0.5, 0.9))
bce = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(128, 1), torch.zeros(128, 1)

with torch.no_grad():
    print("MMD before", mmd(G(torch.randn(1000, 4)), real(1000)))

for it in range(400):
    # discriminator
    fake = G(torch.randn(128, 4))
    d_loss = bce(D(real(128)), ones * 0.9) + bce(D(fake.detach()), zeros)
    d_opt.zero_grad()
    d_loss.backward()
    d_opt.step()
    # generator
    g_loss = bce(D(G(torch.randn(128, 4))), ones)
    g_opt.zero_grad()
    g_loss.backward()
    g_opt.step()
    if it % 80 == 0:
        print(it, round(d_loss.item(), 3), round(g_loss.item(), 3))

with torch.no_grad():
    print("FINAL MMD", mmd(G(torch.randn(1000, 4)), real(1000)))
