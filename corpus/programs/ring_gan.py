import math

import torch
from torch import nn


def sample_ring(n):
    """Points on a noisy arc."""
    angle = torch.rand(n) * math.pi
    r = 1.0 + 0.05 * torch.randn(n)
    return torch.stack([r * angle.cos(), r * angle.sin()], 1)


class Generator(nn.Module):
    def __init__(self, z=4, h=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(z, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, 2))
        self.z = z

    def forward(self, n):
        return self.net(torch.randn(n, self.z))


class Discriminator(nn.Module):
    def __init__(self, h=64):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, h), nn.LeakyReLU(0.2), nn.Linear(h, h), nn.LeakyReLU(0.2), nn.Linear(h, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


def main():
    torch.manual_seed(2)
    G, D = Generator(), Discriminator()
    opt_g = torch.optim.Adam(G.parameters(), lr=1e-3, betas=(0.5, 0.9))
    opt_d = torch.optim.Adam(D.parameters(), lr=1e-3, betas=(0.5, 0.9))
    bce = nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(96), torch.zeros(96)
    for step in range(1, 801):
        fake = G(96)
        d_loss = bce(D(sample_ring(96)), ones) + bce(D(fake.detach()), zeros)
        opt_d.zero_grad()
        d_loss.backward()
        opt_d.step()

        g_loss = bce(D(G(96)), ones)
        opt_g.zero_grad()
        g_loss.backward()
        opt_g.step()
        if step % 100 == 0:
            with torch.no_grad():
                pts = G(1000)
                radius = pts.norm(dim=1)
            print(
                f"{step:4d} D {d_loss.item():.3f} G {g_loss.item():.3f} "
                f"radius {radius.mean():.3f}+-{radius.std():.3f} mean {pts.mean(0).tolist()}"
            )


if __name__ == "__main__":
    main()
