"""A shared linear decoder, modulated per style by a low-rank term."""
import torch
import torch.nn as nn


class LowRankModulation(nn.Module):
    """W + B A for every style."""

    def __init__(self, styles, n_in, n_out, rank=4):
        super().__init__()
        self.base = nn.Linear(n_in, n_out)
        # no modulation at the start
        self.A = nn.Parameter(torch.randn(styles, rank, n_in) / n_in ** 0.5)
        self.B = nn.Parameter(torch.zeros(styles, n_out, rank))

    def forward(self, z, style):
        low = torch.einsum("bri,bi->br", self.A[style], z)
        return self.base(z) + torch.einsum("bor,br->bo", self.B[style], low)


class Generator(nn.Module):
    def __init__(self, styles=3, latent=12, out=20):
        super().__init__()
        self.inp = nn.Sequential(nn.Linear(latent, 40), nn.Tanh())
        self.mod = LowRankModulation(styles, 40, out)

    def forward(self, z, style):
        return self.mod(self.inp(z), style)


def main():
    torch.manual_seed(35)
    truth = torch.randn(3, 20, 12) / 12 ** 0.5
    gen = Generator()
    opt = torch.optim.Adam(gen.parameters(), lr=3e-3)
    for step in range(1500):
        z = torch.randn(64, 12)
        s = torch.randint(0, 3, (64,))
        target = torch.tanh(torch.einsum("boi,bi->bo", truth[s], z))
        loss = (gen(z, s) - target).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 150 == 149:
            print(f"{step + 1}: {loss.item():.4f}  |A| {gen.mod.A.norm().item():.3f}  |B| {gen.mod.B.norm().item():.3f}")


main()
