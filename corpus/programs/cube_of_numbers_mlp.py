"""Approximate x^3 for the whole numbers below 4000."""
import torch
from torch import nn


def table():
    x = torch.arange(1, 4000, dtype=torch.float32).unsqueeze(1)
    y = x ** 3
    return (x - x.mean()) / x.std(), (y - y.mean()) / y.std()


def fit(net, x, y, epochs=700):
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    loss_fn = nn.MSELoss()
    for epoch in range(epochs):
        opt.zero_grad()
        loss = loss_fn(net(x), y)
        loss.backward()
        opt.step()
        if epoch % 100 == 0 or epoch == epochs - 1:
            print(f"{epoch:4d}  loss {loss.item():.6g}")


def r2(net, x, y):
    with torch.no_grad():
        return 1 - ((net(x) - y) ** 2).mean() / y.var()


if __name__ == "__main__":
    torch.manual_seed(50)
    x, y = table()
    net = nn.Sequential(nn.Linear(1, 50), nn.ReLU(), nn.Linear(50, 1))
    fit(net, x, y)
    print(f"R2 {r2(net, x, y):.4f}")
