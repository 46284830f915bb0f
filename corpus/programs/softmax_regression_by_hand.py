"""Softmax regression on digits with everything written out."""
import torch
from sklearn.datasets import load_digits

torch.manual_seed(15)
X, t = load_digits(return_X_y=True)
X = torch.tensor(X / 16.0, dtype=torch.float32)
T = torch.eye(10)[torch.tensor(t)]
order = torch.randperm(len(X))
X, T = X[order], T[order]

W1 = (torch.randn(64, 100) * (2 / 64) ** 0.5).requires_grad_()
b1 = torch.zeros(100, requires_grad=True)
W2 = (torch.randn(100, 10) * 0.1).requires_grad_()
b2 = torch.zeros(10, requires_grad=True)
params = [W1, b1, W2, b2]


def softmax(s):
    e = torch.exp(s)
    return e / e.sum(1, keepdim=True)


def cross_entropy(p, target):
    return -(target * torch.log(p)).sum(1).mean()


def model(x):
    h = torch.relu(x @ W1 + b1)
    return softmax(h @ W2 + b2)


lr, momentum = 0.2, 0.9
velocity = [torch.zeros_like(p) for p in params]
for epoch in range(60):
    running = 0.0
    for i in range(0, 1400, 100):
        loss = cross_entropy(model(X[i:i + 100]), T[i:i + 100])
        grads = torch.autograd.grad(loss, params)
        with torch.no_grad():
            for p, v, g in zip(params, velocity, grads):
                v.mul_(momentum).add_(g)
                p.sub_(lr * v)
        running += loss.item()
    if epoch % 5 == 0 or epoch < 3:
        acc = (model(X[1400:]).argmax(1) == T[1400:].argmax(1)).float().mean().item()
        print(f"epoch {epoch}: loss {running / 14:.4f} test accuracy {acc:.3f}")
