"""Softmax regression written from scratch, with plain gradient descent."""
import torch
from sklearn.datasets import load_digits

digits = load_digits()
torch.manual_seed(84)
perm = torch.randperm(len(digits.data))
X = torch.tensor(digits.data, dtype=torch.float32)[perm] / 16
Y = torch.nn.functional.one_hot(torch.tensor(digits.target)[perm], 10).float()

W1 = (torch.randn(64, 64) * 0.15).requires_grad_()
b1 = torch.zeros(64, requires_grad=True)
W2 = (torch.randn(64, 10) * 0.1).requires_grad_()
b2 = torch.zeros(10, requires_grad=True)
lr = 0.1
for epoch in range(60):
    for i in range(0, 1400, 200):
        x, y = X[i:i + 200], Y[i:i + 200]
        h = torch.relu(x @ W1 + b1)
        logp = torch.log_softmax(h @ W2 + b2, dim=1)
        loss = -torch.sum(y * logp)
        grads = torch.autograd.grad(loss, [W1, b1, W2, b2])
        with torch.no_grad():
            for p, g in zip([W1, b1, W2, b2], grads):
                p -= lr * g
    with torch.no_grad():
        out = torch.relu(X[1400:] @ W1 + b1) @ W2 + b2
        acc = (out.argmax(1) == Y[1400:].argmax(1)).float().mean()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1} loss {loss.item() / 200:.4f} accuracy {acc:.3f}")
