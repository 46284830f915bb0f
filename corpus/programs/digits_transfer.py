"""Train a small convnet on the digits 0-4, then carry its features over to the digits 5-9."""

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class SmallConvNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc = nn.Linear(32 * 2 * 2, 64)
        self.head = nn.Linear(64, num_classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc(x.flatten(1)))
        return self.head(x)


def load(digits):
    data = load_digits()
    keep = np.isin(data.target, digits)
    x = torch.tensor(data.images[keep] / 16.0, dtype=torch.float32).unsqueeze(1)
    y = torch.tensor(data.target[keep] - min(digits))
    return train_test_split(x, y, test_size=0.25, random_state=0)


def train(model, optimizer, x, y, epochs, batch_size=32):
    model.train()
    for epoch in range(epochs):
        order = torch.randperm(len(x))
        total = 0.0
        for i in range(0, len(x), batch_size):
            idx = order[i : i + batch_size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(idx)
        print(f"  epoch {epoch + 1}: train loss {total / len(x):.4f}")


@torch.no_grad()
def evaluate(model, x, y):
    model.eval()
    logits = model(x)
    return F.cross_entropy(logits, y).item(), (logits.argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(0)
    model = SmallConvNet(num_classes=5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    print("pretraining on 0-4")
    x_train, x_test, y_train, y_test = load([0, 1, 2, 3, 4])
    train(model, optimizer, x_train, y_train, epochs=5)
    print("test loss %.4f, accuracy %.3f" % evaluate(model, x_test, y_test))

    # new classes, so a new head; go slower to keep the features
    model.head = nn.Linear(64, 5)
    for group in optimizer.param_groups:
        group["lr"] = 0.005

    print("fine-tuning on 5-9")
    x_train, x_test, y_train, y_test = load([5, 6, 7, 8, 9])
    train(model, optimizer, x_train, y_train, epochs=6)
    print("test loss %.4f, accuracy %.3f" % evaluate(model, x_test, y_test))


if __name__ == "__main__":
    main()
