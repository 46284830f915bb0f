"""Three ways to write the same classifier objective on iris: NLL on log-probabilities, soft labels, label smoothing."""
import torch
from torch import nn
from sklearn.datasets import load_iris

iris = load_iris()
x = torch.tensor(iris.data, dtype=torch.float32)
x = (x - x.mean(0)) / x.std(0)
y = torch.tensor(iris.target)
gen = torch.Generator().manual_seed(0)
p = torch.randperm(150, generator=gen)
x, y = x[p], y[p]


def nll(scores, y):
    return nn.functional.nll_loss(nn.functional.log_softmax(scores, dim=1), y)


def soft(scores, y):
    target = nn.functional.one_hot(y, 3) * 0.9 + 0.1 / 3
    return nn.functional.cross_entropy(scores, target)


def smooth(scores, y):
    return nn.functional.cross_entropy(scores, y, label_smoothing=0.1)


for objective in (nll, soft, smooth):
    torch.manual_seed(137)
    net = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 3))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(60):
        for i in range(0, 120, 30):
            loss = objective(net(x[i : i + 30]), y[i : i + 30])
            opt.zero_grad()
            loss.backward()
            opt.step()
    acc = (net(x[120:]).argmax(1) == y[120:]).float().mean().item()
    print(f"{objective.__name__:>7}: loss {loss.item():.4f} accuracy {acc:.3f}")
