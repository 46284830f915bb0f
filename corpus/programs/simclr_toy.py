import torch
import torch.nn.functional as F
from torch import nn
from sklearn.datasets import load_digits


def augment(x):
    x = x + 0.15 * torch.randn_like(x)
    keep = (torch.rand_like(x) > 0.1).float()
    return x * keep


def nt_xent(z1, z2, tau=0.3):
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    sim = z @ z.t() / tau
    n = len(z1)
    sim.fill_diagonal_(float("-inf"))
    partner = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return F.cross_entropy(sim, partner)


class SimCLR:
    def __init__(self, lr=2e-3):
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.projector = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32))
        self.params = list(self.encoder.parameters()) + list(self.projector.parameters())
        self.opt = torch.optim.Adam(self.params, lr=lr)

    def fit(self, x, steps=700, batch=64):
        for s in range(steps):
            xb = x[torch.randint(0, len(x), (batch,))]
            z1 = self.projector(self.encoder(augment(xb)))
            z2 = self.projector(self.encoder(augment(xb)))
            loss = nt_xent(z1, z2)
            self.opt.zero_grad()
            loss.backward()
            self.opt.step()
            if s % 100 == 99:
                print(f"step {s + 1}: contrastive loss {loss.item():.3f}")
        return self


if __name__ == "__main__":
    torch.manual_seed(1)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32) / 16
    model = SimCLR().fit(x)
    with torch.no_grad():
        za, zb = (F.normalize(model.projector(model.encoder(augment(x))), dim=1) for _ in range(2))
        hits = [(a @ b.t()).argmax(1) == torch.arange(len(a)) for a, b in zip(za.split(64), zb.split(64))]
    print(f"second view found among 64 images: {torch.cat(hits).float().mean():.3f}")
