"""Autoencoder with an online linear probe. The probe reads the code but must not shape it."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class ProbedAutoencoder(nn.Module):
    def __init__(self, code=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, code))
        self.decoder = nn.Sequential(nn.ReLU(), nn.Linear(code, 48), nn.ReLU(), nn.Linear(48, 64))
        self.probe = nn.Linear(code, 10)

    def forward(self, x):
        code = self.encoder(x)
        return self.decoder(code), self.probe(code.detach())


def main():
    torch.manual_seed(41)
    d = load_digits()
    x = torch.tensor(d.data / 16, dtype=torch.float32)
    y = torch.tensor(d.target)
    model = ProbedAutoencoder()
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(1, 1001):
        i = torch.randint(0, 1500, (64,))
        recon, logits = model(x[i])
        rec_loss = F.mse_loss(recon, x[i])
        probe_loss = F.cross_entropy(logits, y[i])
        opt.zero_grad()
        (rec_loss + probe_loss).backward()
        opt.step()
        if step % 200 == 0:
            acc = (logits.argmax(1) == y[i]).float().mean().item()
            print(f"step {step} reconstruction {rec_loss.item():.4f} probe {probe_loss.item():.3f} batch acc {acc:.2f}")
    with torch.no_grad():
        recon, logits = model(x[1500:])
    print(f"held out: mse {F.mse_loss(recon, x[1500:]):.4f} probe acc {(logits.argmax(1) == y[1500:]).float().mean():.3f}")


main()
