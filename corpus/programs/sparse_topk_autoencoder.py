"""Sparse dictionary: only the k largest codes of a row survive."""
import torch
from torch import nn

torch.manual_seed(4)
n_atoms, d = 40, 24
atoms = nn.functional.normalize(torch.randn(40, d), dim=1)


def batch(n):
    picks = torch.rand(n, 40).topk(3, dim=1).indices
    coef = torch.zeros(n, 40).scatter_(1, picks, torch.rand(n, 3) + 0.5)
    return coef @ atoms


class SparseAE(nn.Module):
    def __init__(self, k=4):
        super().__init__()
        self.enc = nn.Linear(d, n_atoms)
        self.dec = nn.Linear(n_atoms, d)
        self.k = k
        with torch.no_grad():
            self.enc.weight.copy_(self.dec.weight.t() * 2)

    def forward(self, x):
        a = torch.relu(self.enc(x - self.dec.bias))
        kept = a.topk(self.k, dim=1)
        code = torch.zeros_like(a).scatter(1, kept.indices, kept.values)
        return self.dec(code), code


model = SparseAE()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
fired = torch.zeros(n_atoms, dtype=torch.bool)
for step in range(2000):
    x = batch(128)
    recon, code = model(x)
    loss = ((recon - x) ** 2).sum(1).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    fired |= (code > 0).any(0)
    if step % 250 == 249:
        zeros = (code == 0).float().mean().item()
        print(f"{step + 1:5d} recon {loss.item():.4f} zeros {zeros:.2f} atoms used {int(fired.sum())}")
        fired.zero_()
print(f"signal power {batch(1000).pow(2).sum(1).mean():.3f}")
