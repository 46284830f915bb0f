"""A hand-rolled trainer with a reproducible batch sampler."""
import torch
import torch.nn as nn
from sklearn.datasets import make_classification


class Batches:
    """Random mini-batches that are the same in every run."""

    def __init__(self, x, y, size, seed):
        self.x, self.y, self.size = x, y, size
        self.g = torch.Generator().manual_seed(seed)

    def draw(self):
        idx = torch.randint(len(self.x), (self.size,), generator=self.g)
        return self.x[idx], self.y[idx]


class Trainer:
    def __init__(self, model, batches, lr=1e-3):
        self.model, self.batches = model, batches
        self.opt = torch.optim.Adam(model.parameters(), lr=lr)
        self.loss_fn = nn.CrossEntropyLoss()

    def step(self):
        x, y = self.batches.draw()
        self.opt.zero_grad()
        loss = self.loss_fn(self.model(x), y)
        loss.backward()
        self.opt.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, x, y):
        self.model.eval()
        out = self.model(x)
        self.model.train()
        return self.loss_fn(out, y).item(), (out.argmax(1) == y).float().mean().item()

    def fit(self, steps, val):
        for s in range(1, steps + 1):
            train_loss = self.step()
            if s % 100 == 0:
                vl, va = self.evaluate(*val)
                print(f"[{s}] train {train_loss:.4f} | val {vl:.4f} acc {va:.3f}")


torch.manual_seed(0)
X, y = make_classification(6000, 20, n_informative=12, n_redundant=2, n_classes=5, n_clusters_per_class=2,
                           class_sep=1.5, random_state=3)
X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)
model = nn.Sequential(nn.Linear(20, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 5))
Trainer(model, Batches(X[:5000], y[:5000], 64, seed=77)).fit(800, (X[5000:], y[5000:]))
