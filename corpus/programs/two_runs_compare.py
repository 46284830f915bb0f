"""Compare two activations on the same data, one training after the other."""
import torch
from torch import nn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

x, y = load_breast_cancer(return_X_y=True)
xtr, xte, ytr, yte = train_test_split(x, y, test_size=0.25, random_state=1)
sc = StandardScaler().fit(xtr)
xtr, xte = (torch.tensor(sc.transform(a), dtype=torch.float32) for a in (xtr, xte))
ytr, yte = torch.tensor(ytr), torch.tensor(yte)


def experiment(name, act, steps=350):
    torch.manual_seed(89)
    net = nn.Sequential(nn.Linear(30, 20), act(), nn.Linear(20, 2))
    opt = torch.optim.Adagrad(net.parameters(), lr=0.05)
    for s in range(steps):
        i = torch.randint(0, len(xtr), (40,))
        loss = nn.functional.cross_entropy(net(xtr[i]), ytr[i])
        opt.zero_grad()
        loss.backward()
        opt.step()
        if s % 100 == 0:
            print(f"  {name} step {s} loss {loss.item():.4f}")
    with torch.no_grad():
        return (net(xte).argmax(1) == yte).float().mean().item()


results = {n: experiment(n, a) for n, a in (("relu", nn.ReLU), ("tanh", nn.Tanh))}
for name, acc in results.items():
    print(f"{name}: test accuracy {acc:.3f}")
