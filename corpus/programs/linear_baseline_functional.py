"""Multinomial logistic regression, functional style, as a baseline for digits."""
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(71)
digits = load_digits()
X = torch.tensor(digits.data / 16, dtype=torch.float32)
Y = torch.tensor(digits.target)
split = torch.randperm(len(X))
train, test = split[:1400], split[1400:]

W = (0.01 * torch.randn(10, 64)).requires_grad_()
b = torch.zeros(10, requires_grad=True)


def predict(x):
    return torch.softmax(F.linear(x, W, b), dim=1)


def training_step(x, y):
    probs = predict(x)
    log_probs = F.log_softmax(probs, dim=1)
    return F.nll_loss(log_probs, y)


opt = torch.optim.SGD([W, b], lr=0.1)
for epoch in range(15):
    total = 0.0
    for idx in train[torch.randperm(1400)].split(50):
        loss = training_step(X[idx], Y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    with torch.no_grad():
        acc = (predict(X[test]).argmax(1) == Y[test]).float().mean()
    print(f"epoch {epoch + 1:2d}  loss {total / 28:.4f}  acc {acc:.4f}")
