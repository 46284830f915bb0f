import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset


class ModelEMA:
    """Exponential moving average of the weights, used for evaluation."""

    def __init__(self, model, decay=0.97):
        self.module = copy.deepcopy(model).eval()
        for p in self.module.parameters():
            p.requires_grad_(False)
        self.decay = decay

    @torch.no_grad()
    def update(self, model):
        for e, p in zip(self.module.parameters(), model.parameters()):
            e.mul_(self.decay).add_(p, alpha=1 - self.decay)


def build():
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 24, 3, stride=2, bias=False), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Flatten(), nn.Linear(96, 10),
    )


def accuracy(model, x, y):
    was_training = model.training
    model.eval()
    with torch.no_grad():
        acc = (model(x).argmax(1) == y).float().mean().item()
    model.train(was_training)
    return acc


def main():
    torch.manual_seed(331)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32)[:, None]
    y = torch.tensor(d.target)
    loader = DataLoader(TensorDataset(x[:1400], y[:1400]), batch_size=56, shuffle=True)
    model = build()
    ema = ModelEMA(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    for epoch in range(10):
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            ema.update(model)
        print(f"epoch {epoch} loss {loss.item():.4f} model {accuracy(model, x[1400:], y[1400:]):.3f} ema {accuracy(ema.module, x[1400:], y[1400:]):.3f}")


if __name__ == "__main__":
    main()
