from dataclasses import dataclass

import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset, random_split


@dataclass
class Config:
    micro_batch: int = 8
    accumulate: int = 4
    epochs: int = 20
    lr: float = 0.05


class Trainer:
    def __init__(self, cfg: Config):
        self.cfg = cfg
        bunch = load_breast_cancer()
        x = torch.tensor(StandardScaler().fit_transform(bunch.data), dtype=torch.float32)
        y = torch.tensor(bunch.target, dtype=torch.float32)
        self.train_set, self.test_set = random_split(TensorDataset(x, y), [448, len(x) - 448])
        self.model = nn.Sequential(nn.Linear(30, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.criterion = nn.BCEWithLogitsLoss()

    def train_epoch(self):
        self.model.train()
        loader = DataLoader(self.train_set, batch_size=self.cfg.micro_batch, shuffle=True)
        total = 0.0
        for i, (x, y) in enumerate(loader, start=1):
            loss = self.criterion(self.model(x).squeeze(-1), y) / self.cfg.accumulate
            loss.backward()
            total += loss.item() * self.cfg.accumulate
            if i % self.cfg.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
        return total / len(loader)

    @torch.no_grad()
    def evaluate(self):
        self.model.eval()
        x, y = self.test_set[:]
        return ((self.model(x).squeeze(-1) > 0).float() == y).float().mean().item()

    def run(self):
        for epoch in range(self.cfg.epochs):
            loss = self.train_epoch()
            print(f"epoch {epoch:2d} loss {loss:.4f} test accuracy {self.evaluate():.3f}")


torch.manual_seed(17)
Trainer(Config()).run()
