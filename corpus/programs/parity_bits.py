"""Parity of three out of twelve bits. Nothing happens for a while, then the network finds it."""
import torch
from torch import nn

torch.manual_seed(2)
N_BITS, SUBSET = 12, (1, 4, 9)


def draw(n):
    bits = torch.randint(0, 2, (n, N_BITS)).float() * 2 - 1
    label = (bits[:, SUBSET].prod(1) > 0).float()
    return bits, label


net = nn.Sequential(nn.Linear(N_BITS, 64), nn.ReLU(), nn.Linear(64, 1))
sgd = torch.optim.SGD(net.parameters(), lr=0.05)
loss_fn = nn.BCEWithLogitsLoss()
for step in range(1, 4001):
    x, y = draw(64)
    loss = loss_fn(net(x).squeeze(1), y)
    sgd.zero_grad()
    loss.backward()
    sgd.step()
    if step % 500 == 0:
        with torch.no_grad():
            xv, yv = draw(1000)
            acc = ((net(xv).squeeze(1) > 0).float() == yv).float().mean().item()
        print(f"step {step:5d} loss {loss.item():.4f} fresh accuracy {acc:.3f}")
