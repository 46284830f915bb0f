"""Autoencoder for digits with a sparsity penalty on the code."""
import torch
import torch.nn as nn
from sklearn.datasets import load_digits


class SparseAE(nn.Module):
    def __init__(self, code=48):
        super().__init__()
        self.enc = nn.Linear(64, code)
        self.dec = nn.Linear(code, 64)
        self.activity = None

    def forward(self, x):
        code = torch.relu(self.enc(x))
        self.activity = code.abs().mean()
        return self.dec(code)


torch.manual_seed(112)
x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
x = x - x.mean(0)
model = SparseAE()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
beta = 0.3
for epoch in range(30):
    for b in x[torch.randperm(len(x))].split(64):
        recon = model(b)
        rec_loss = ((recon - b) ** 2).mean()
        penalty = model.activity
        loss = rec_loss + beta * penalty
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 5 == 4:
        with torch.no_grad():
            code = torch.relu(model.enc(x))
        print(f"epoch {epoch + 1} loss {loss.item():.4f} rec {rec_loss.item():.4f} penalty {penalty.item():.4f} "
              f"active share {(code > 0.01).float().mean():.3f}")
