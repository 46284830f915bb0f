"""LeNet-like net on 8x8 digits in a Config/Trainer style."""
import torch
import torch.nn as nn
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset, random_split


class Config:
    seed = 12
    lr = 0.05
    momentum = 0.9
    epochs = 8
    batch_size = 32


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
            nn.Conv2d(8, 24, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Linear(96, 64), nn.Tanh(), nn.Linear(64, 10))

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class Trainer:
    def __init__(self, cfg):
        torch.manual_seed(cfg.seed)
        d = load_digits()
        ds = TensorDataset(torch.tensor(d.images, dtype=torch.float32)[:, None] / 16, torch.tensor(d.target))
        self.train_set, self.val_set = random_split(ds, [1400, 397])
        self.cfg, self.model, self.criterion = cfg, LeNet(), nn.CrossEntropyLoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=cfg.momentum)

    def run(self):
        for epoch in range(self.cfg.epochs):
            loader = DataLoader(self.train_set, batch_size=self.cfg.batch_size, shuffle=True)
            mean = sum(self.train_step(x, y) for x, y in loader) / len(loader)
            print(f"[{epoch + 1}] train loss {mean:.4f} val acc {self.validate():.3f}")

    def train_step(self, x, y):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        x, y = self.val_set[:]
        return (self.model(x).argmax(1) == y).float().mean().item()


Trainer(Config).run()
