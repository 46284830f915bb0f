"""A class with fit and score for three species of iris; cross-entropy from the log-probabilities."""
import torch
from sklearn.datasets import load_iris
from torch import nn


class IrisModel:
    def __init__(self, hidden=16, lr=0.02, epochs=60):
        self.net = nn.Sequential(nn.Linear(4, hidden), nn.Tanh(), nn.Linear(hidden, 3), nn.LogSoftmax(dim=1))
        self.lr, self.epochs = lr, epochs

    def loss(self, logp, y):
        return logp[torch.arange(len(y)), y].mean()

    def fit(self, x, y):
        opt = torch.optim.SGD(self.net.parameters(), lr=self.lr)
        for epoch in range(self.epochs):
            for i in torch.randperm(len(x)).split(20):
                opt.zero_grad()
                loss = self.loss(self.net(x[i]), y[i])
                loss.backward()
                opt.step()
            if epoch % 10 == 9:
                print(f"epoch {epoch + 1}: loss {loss.item():.4f}, accuracy {self.score(x, y):.3f}")
        return self

    @torch.no_grad()
    def score(self, x, y):
        return (self.net(x).argmax(1) == y).float().mean().item()


torch.manual_seed(88)
x, y = load_iris(return_X_y=True)
x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
IrisModel().fit(x, torch.tensor(y))
