import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import make_circles

torch.manual_seed(1)
X, y = make_circles(1000, noise=0.1, factor=0.4, random_state=1)
X = torch.from_numpy(X.astype(np.float32))
y = torch.from_numpy(y.astype(np.float32)).unsqueeze(1)


def build(depth=8, width=5):
    layers, n = [], 2
    for _ in range(depth):
        layers += [nn.Linear(n, width), nn.ReLU()]
        n = width
    layers.append(nn.Linear(n, 1))
    net = nn.Sequential(*layers)
    for m in net:
        if isinstance(m, nn.Linear):
            nn.init.uniform_(m.weight, -0.05, 0.05)
            nn.init.zeros_(m.bias)
    return net


net = build()
optim = torch.optim.SGD(net.parameters(), lr=0.01)
bce = nn.BCEWithLogitsLoss()
for epoch in range(1, 61):
    perm = torch.randperm(len(X))
    losses, hits = [], 0
    for batch in perm.split(32):
        out = net(X[batch])
        loss = bce(out, y[batch])
        optim.zero_grad()
        loss.backward()
        optim.step()
        losses.append(loss.item())
        hits += ((out > 0).float() == y[batch]).sum().item()
    if epoch % 10 == 0:
        print(f"Epoch {epoch}/60 - loss: {np.mean(losses):.4f} - accuracy: {hits / len(X):.4f}")
