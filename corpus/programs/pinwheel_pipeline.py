"""Encoder and classifier as two objects; features are computed first, then classified."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Encoder(nn.Module):
    def __init__(self, n_in=2, n_out=8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, n_out))

    def encode(self, x):
        return F.normalize(self.layers(x), dim=-1)


class Pipeline:
    def __init__(self):
        self.encoder = Encoder()
        self.classifier = nn.Linear(8, 4)
        self.optimizer = torch.optim.Adam(
            list(self.encoder.parameters()) + list(self.classifier.parameters()), lr=3e-3)

    def step(self, x, y):
        features = self.encoder.encode(x)
        loss = F.cross_entropy(5 * self.classifier(features), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def accuracy(self, x, y):
        with torch.no_grad():
            return (self.classifier(self.encoder.encode(x)).argmax(1) == y).float().mean().item()


def pinwheel(n):
    y = torch.randint(0, 4, (n,))
    r = torch.rand(n) * 2 + 0.2
    angle = y * 1.5708 + 1.2 * r + 0.15 * torch.randn(n)
    return torch.stack([r * torch.cos(angle), r * torch.sin(angle)], 1), y


torch.manual_seed(27)
pipe = Pipeline()
x_test, y_test = pinwheel(1000)
losses = []
for i in range(1, 1201):
    losses.append(pipe.step(*pinwheel(64)))
    if i % 120 == 0:
        print(f"{i:5d}  loss {sum(losses[-120:]) / 120:.4f}  test {pipe.accuracy(x_test, y_test):.3f}")
