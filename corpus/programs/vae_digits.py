import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class VAE(nn.Module):
    def __init__(self, latent=8):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(64, 96), nn.ReLU())
        self.mu, self.logvar = nn.Linear(96, latent), nn.Linear(96, latent)
        self.dec = nn.Sequential(nn.Linear(latent, 96), nn.ReLU(), nn.Linear(96, 64))

    def forward(self, x):
        h = self.enc(x)
        mu, logvar = self.mu(h), self.logvar(h)
        z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        return self.dec(z), mu, logvar


def elbo(logits, x, mu, logvar, beta):
    # summed over pixels and latent units, averaged over the batch
    rec = F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1).mean()
    kl = -0.5 * (1 + logvar - mu.pow(2) - logvar.exp()).sum(1).mean()
    return rec, kl, rec + beta * kl


def main():
    torch.manual_seed(229)
    x = torch.tensor(load_digits().data / 16, dtype=torch.float32)
    train, test = x[:1500], x[1500:]
    vae = VAE()
    opt = torch.optim.Adam(vae.parameters(), lr=2e-3)
    for epoch in range(40):
        beta = min(1.0, epoch / 10)
        for rows in torch.randperm(1500).split(75):
            rec, kl, loss = elbo(*((o := vae(train[rows]))[0], train[rows], o[1], o[2]), beta)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 8 == 7:
            with torch.no_grad():
                out, mu, lv = vae(test)
                tr, tk, tl = elbo(out, test, mu, lv, 1.0)
            print(f"epoch {epoch + 1} train rec {rec.item():.2f} kl {kl.item():.2f} | test -elbo {tl.item():.2f}")


main()
