"""Variational autoencoder for expression profiles of cells."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class VAE(nn.Module):
    def __init__(self, genes=64, latent=8):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(genes, 64), nn.ReLU())
        self.mu, self.logvar = nn.Linear(64, latent), nn.Linear(64, latent)
        self.decoder = nn.Sequential(nn.Linear(latent, 64), nn.ReLU(), nn.Linear(64, genes))

    def forward(self, x):
        h = self.encoder(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.decoder(z), mu, logvar


def elbo(recon, x, mu, logvar):
    rec = F.mse_loss(recon, x, reduction="sum") / len(x)
    kl = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp()) / len(x)
    return rec + kl, rec, kl


def cells(n):
    programs = torch.randn(6, 64)
    return torch.randn(n, 6) @ programs + 0.1 * torch.randn(n, 64)


torch.manual_seed(85)
data = cells(2000)
data = data / data.std()
model = VAE()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(16):
    for batch in data[torch.randperm(2000)].split(64):
        recon, mu, logvar = model(batch)
        loss, rec, kl = elbo(recon, batch, mu, logvar)
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        err = F.mse_loss(model(data)[0], data)
    print(f"epoch {epoch} loss {loss.item():.4f} rec {rec.item():.4f} kl {kl.item():.4f} full reconstruction error {err:.4f}")
