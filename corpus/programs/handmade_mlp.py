"""Writing the layers myself to understand them."""

import torch
from sklearn.datasets import make_moons

torch.manual_seed(9)


class Dense(torch.nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.w = torch.nn.Parameter(torch.full((n_in, n_out), 1.0 / n_in))
        self.b = torch.nn.Parameter(torch.zeros(n_out))

    def forward(self, x):
        return x @ self.w + self.b


class MLP(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.layers = torch.nn.ModuleList(Dense(a, b) for a, b in zip(sizes[:-1], sizes[1:]))

    def forward(self, x):
        for layer in self.layers[:-1]:
            x = torch.tanh(layer(x))
        return self.layers[-1](x)


X, y = make_moons(1200, noise=0.12, random_state=4)
X = torch.tensor(X, dtype=torch.float32)
X = (X - X.mean(0)) / X.std(0)
y = torch.tensor(y)
Xtr, ytr, Xte, yte = X[:900], y[:900], X[900:], y[900:]

mlp = MLP([2, 24, 24, 2])
optim = torch.optim.Adam(mlp.parameters(), lr=0.02)
for it in range(1, 351):
    batch = torch.randint(900, (128,))
    loss = torch.nn.functional.cross_entropy(mlp(Xtr[batch]), ytr[batch])
    mlp.zero_grad()
    loss.backward()
    optim.step()
    if it % 50 == 0:
        with torch.no_grad():
            acc = (mlp(Xte).argmax(1) == yte).float().mean().item()
        print(f"iter {it} | loss {loss:.4f} | test acc {acc:.3f}")
print("FINAL accuracy", acc)
