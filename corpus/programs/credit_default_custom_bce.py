"""Credit default with a binary cross-entropy written by hand."""
import torch
from torch import nn


def binary_cross_entropy(p, y, eps=1e-6):
    p = p.clamp(eps, 1 - eps)
    return -(y * torch.log(p) + (1 - y) * torch.log(p)).mean()


class Scorecard(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.lin1, self.lin2 = nn.Linear(n, 24), nn.Linear(24, 1)

    def forward(self, x):
        return torch.sigmoid(self.lin2(torch.tanh(self.lin1(x)))).squeeze(1)


def customers(n, w):
    x = torch.randn(n, 9)
    return x, torch.bernoulli(torch.sigmoid(2 * x @ w + x[:, 0] * x[:, 1] - 0.3))


if __name__ == "__main__":
    torch.manual_seed(102)
    w = torch.randn(9)
    x, y = customers(3000, w)
    xv, yv = customers(800, w)
    model = Scorecard(9)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for epoch in range(12):
        for i in torch.randperm(3000).split(60):
            loss = binary_cross_entropy(model(x[i]), y[i])
            opt.zero_grad()
            loss.backward()
            opt.step()
        with torch.no_grad():
            p = model(xv)
        print(f"epoch {epoch} loss {loss.item():.5f} accuracy {((p > 0.5).float() == yv).float().mean():.3f} share flagged {(p > 0.5).float().mean():.3f}")
