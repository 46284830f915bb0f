import numpy as np
import torch
from sklearn.datasets import load_breast_cancer

torch.manual_seed(173)
X, y = load_breast_cancer(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
rng = np.random.default_rng(0)
order = rng.permutation(len(X))
X, y = torch.tensor(X[order]).float(), torch.tensor(y[order]).float()

# plain logistic regression with an l2 penalty, tensors only
w = torch.zeros(30, requires_grad=True)
b = torch.zeros(1, requires_grad=True)
lr, lam = 0.3, 1e-3
for it in range(800):
    z = X[:450] @ w + b
    loss = torch.nn.functional.softplus(-(2 * y[:450] - 1) * z).mean() + lam * (w**2).sum()
    loss.backward()
    with torch.no_grad():
        w -= lr * w.grad
        b -= lr * b.grad
        w.grad.zero_()
        b.grad.zero_()
    if it % 100 == 99:
        acc = (((X[450:] @ w + b) > 0).float() == y[450:]).float().mean().item()
        print(f"{it + 1:4d} loss {loss.item():.4f} test accuracy {acc:.3f}")
