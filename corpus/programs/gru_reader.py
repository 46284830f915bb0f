"""Read a digit row by row with a GRU. The encoder and the classifier have their own learning rates."""

import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class Encoder(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.gru = nn.GRU(8, hidden, batch_first=True)

    def forward(self, x):
        _, h = self.gru(x)
        return h[-1]


class Classifier(nn.Module):
    def __init__(self, hidden=16):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(hidden, 32), nn.ReLU(), nn.Linear(32, 10))

    def forward(self, h):
        return self.layers(h)


class Trainer:
    def __init__(self, seed=1):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        self.encoder = Encoder()
        self.classifier = Classifier()
        self.encoder_optimizer = torch.optim.Adam(self.encoder.parameters(), lr=5e-3)
        self.classifier_optimizer = torch.optim.Adam(self.classifier.parameters(), lr=1e-2)
        self.criterion = nn.CrossEntropyLoss()
        x, y = load_digits(return_X_y=True)
        x = (x / 16.0).reshape(-1, 8, 8).astype("float32")
        x_train, x_val, y_train, y_val = train_test_split(x, y, test_size=0.2, random_state=seed, stratify=y)
        self.train_data = torch.from_numpy(x_train), torch.from_numpy(y_train)
        self.val_data = torch.from_numpy(x_val), torch.from_numpy(y_val)

    def train_step(self, x, y):
        self.encoder_optimizer.zero_grad()
        self.classifier_optimizer.zero_grad()
        loss = self.criterion(self.classifier(self.encoder(x)), y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.encoder.parameters(), 5.0)
        self.classifier_optimizer.step()
        return loss.item()

    def validate(self):
        x, y = self.val_data
        with torch.no_grad():
            logits = self.classifier(self.encoder(x))
        return self.criterion(logits, y).item(), (logits.argmax(1) == y).float().mean().item()

    def fit(self, epochs=10, batch_size=64):
        x, y = self.train_data
        for epoch in range(epochs):
            losses = []
            for idx in torch.randperm(len(x)).split(batch_size):
                losses.append(self.train_step(x[idx], y[idx]))
            val_loss, val_acc = self.validate()
            print(f"[{epoch:02d}] train {np.mean(losses):.3f}  val {val_loss:.3f}  acc {val_acc:.3f}")


if __name__ == "__main__":
    Trainer().fit()
