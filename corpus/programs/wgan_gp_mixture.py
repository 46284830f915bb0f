"""Wasserstein GAN with gradient penalty on a one-dimensional mixture."""
import torch
from torch import nn


def real(n):
    side = (torch.rand(n, 1) < 0.3).float()
    return side * (-2 + 0.3 * torch.randn(n, 1)) + (1 - side) * (1.5 + 0.5 * torch.randn(n, 1))


def net(i, o):
    return nn.Sequential(nn.Linear(i, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, o))


def gradient_penalty(critic, a, b):
    eps = torch.rand(len(a), 1)
    x = (eps * a + (1 - eps) * b).requires_grad_(True)
    (g,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (g.norm(dim=1) - 1).clamp(min=0).pow(2).mean()  # one-sided


def train(iterations=400, n_critic=5, lam=5.0, n=128):
    gen, critic = net(2, 1), net(1, 1)
    og = torch.optim.Adam(gen.parameters(), lr=5e-4, betas=(0.5, 0.9))
    oc = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.9))
    for it in range(1, iterations + 1):
        for _ in range(n_critic):
            x, z = real(n), torch.randn(n, 2)
            with torch.no_grad():
                fake = gen(z)
            w = critic(fake).mean() - critic(x).mean()
            loss_c = w + lam * gradient_penalty(critic, x, fake)
            oc.zero_grad()
            loss_c.backward()
            oc.step()
        loss_g = -critic(gen(torch.randn(n, 2))).mean()
        og.zero_grad()
        loss_g.backward()
        og.step()
        if it % 50 == 0:
            with torch.no_grad():
                a = gen(torch.randn(2000, 2)).sort(0).values
                b = real(2000).sort(0).values
            print(f"{it} critic {loss_c.item():+.3f} generator {loss_g.item():+.3f} sample distance {(a - b).abs().mean():.3f}")


if __name__ == "__main__":
    torch.manual_seed(211)
    train()
