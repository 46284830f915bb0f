"""MLP on two moons with a manual parameter update."""
import torch
import torch.nn as nn
from sklearn.datasets import make_moons


def sgd(params, lr):
    for p in params:
        if p.grad is not None:
            p.sub_(lr * p.grad)


torch.manual_seed(45)
X, y = make_moons(1000, noise=0.1, random_state=5)
X = torch.tensor(X, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32)
mlp = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
loss_fn = nn.BCEWithLogitsLoss()

for epoch in range(40):
    perm = torch.randperm(800)
    for k in range(0, 800, 40):
        idx = perm[k:k + 40]
        loss = loss_fn(mlp(X[idx]).squeeze(1), y[idx])
        mlp.zero_grad()
        loss.backward()
        with torch.no_grad():
            sgd(mlp.parameters(), lr=0.3)
    if epoch % 4 == 3:
        with torch.no_grad():
            logits = mlp(X[800:]).squeeze(1)
            print(f"epoch {epoch + 1} loss {loss_fn(logits, y[800:]).item():.4f} "
                  f"acc {((logits > 0).float() == y[800:]).float().mean().item():.3f}")
