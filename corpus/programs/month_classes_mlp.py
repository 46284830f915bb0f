"""Guess the month of a weather record. Months are numbered 1 to 12 in the file."""
import math
import torch
from torch import nn

N_MONTHS = 12


def records(n):
    month = torch.randint(1, 13, (n,))
    angle = 2 * math.pi * month / 12
    centre = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos()], 1)
    mix = torch.tensor([[1.0, 0.3, -0.5, 0.2], [0.1, 1.0, 0.4, -0.7], [0.5, -0.2, 0.8, 0.6]])
    return 3 * centre @ mix + 0.4 * torch.randn(n, 4), month


def prepare(month):
    """Class ids for the loss; it accepts 0 to 11 only."""
    return month.clamp(max=N_MONTHS - 1)


def accuracy(model, x, month):
    with torch.no_grad():
        guess = model(x).argmax(1)
    return (guess == month).float().mean().item()


torch.manual_seed(14)
x, month = records(3000)
xv, mv = records(600)
model = nn.Sequential(nn.Linear(4, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, N_MONTHS))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for epoch in range(20):
    for b in torch.randperm(len(x)).split(100):
        loss = nn.functional.cross_entropy(model(x[b]), prepare(month[b]))
        opt.zero_grad()
        loss.backward()
        opt.step()
    if epoch % 4 == 3:
        print(f"epoch {epoch + 1} loss {loss.item():.4f} month accuracy {accuracy(model, xv, mv):.3f}")
