"""VQ-VAE on 4x4 texture patches: codebook and commitment terms with stop-gradients, straight-through decoder input."""
import torch
import torch.nn as nn
import torch.nn.functional as F


def textures(n):
    base = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 1], [1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.float32)
    i, j = torch.randint(0, 4, (2, n))
    return (base[i][:, :, None] * base[j][:, None, :]).flatten(1) + 0.05 * torch.randn(n, 16)


class VectorQuantizer(nn.Module):
    def __init__(self, k, d):
        super().__init__()
        self.codebook = nn.Embedding(k, d)
        nn.init.uniform_(self.codebook.weight, -1, 1)

    def forward(self, z):
        idx = torch.cdist(z, self.codebook.weight).argmin(1)
        q = self.codebook(idx)
        codebook_loss = F.mse_loss(q, z.detach())
        commitment = F.mse_loss(z, q.detach())
        return z + (q - z).detach(), codebook_loss + 0.25 * commitment, idx


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 3), nn.Tanh())
        self.vq = VectorQuantizer(32, 3)
        self.dec = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 16))

    def forward(self, x):
        q, vq_loss, idx = self.vq(self.enc(x))
        return self.dec(q), vq_loss, idx


torch.manual_seed(349)
model = VQVAE()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(1, 1501):
    x = textures(128)
    recon, vq_loss, idx = model(x)
    rec = F.mse_loss(recon, x)
    loss = rec + vq_loss
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 250 == 0:
        print(f"step {step} rec {rec.item():.4f} vq {vq_loss.item():.4f} codes used {idx.unique().numel()} (variance {x.var():.3f})")
