"""Digits classifier; the wider variant is built when the data set is large enough."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(50)


def make_net(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 10))


net = make_net(32)
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)

X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y)
if len(X) > 1000:
    net = make_net(96)

cut = 1400
for epoch in range(12):
    perm = torch.randperm(cut)
    losses = []
    for i in range(0, cut, 50):
        net.zero_grad()
        loss = F.cross_entropy(net(X[perm[i:i + 50]]), y[perm[i:i + 50]])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    with torch.no_grad():
        acc = (net(X[cut:]).argmax(1) == y[cut:]).float().mean().item()
    print(f"epoch {epoch} loss {sum(losses) / len(losses):.4f} test acc {acc:.3f}")
