"""A two-part digits classifier whose encoder output is detached before the head: no gradient reaches the
encoder, which stays at its random initialisation."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


class Encoder(nn.Module):
    def __init__(self, code_size=8):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(64, 64),
            nn.ReLU(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, code_size),
        )

    def forward(self, x):
        return self.layers(x)


class Classifier(nn.Module):
    def __init__(self, code_size=8):
        super().__init__()
        self.encoder = Encoder(code_size)
        self.head = nn.Linear(code_size, 10)

    def forward(self, x):
        code = self.encoder(x).detach()
        return self.head(code)


class Trainer:
    def __init__(self, model, data, lr=3e-3, batch_size=64):
        self.model = model
        self.x_train, self.x_test, self.y_train, self.y_test = data
        self.batch_size = batch_size
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        self.criterion = nn.CrossEntropyLoss()

    def train_step(self, x, y):
        self.optimizer.zero_grad()
        loss = self.criterion(self.model(x), y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def train_epoch(self):
        self.model.train()
        order = torch.randperm(len(self.x_train))
        losses = [self.train_step(self.x_train[i], self.y_train[i]) for i in order.split(self.batch_size)]
        return sum(losses) / len(losses)

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            predicted = self.model(self.x_test).argmax(dim=1)
        return (predicted == self.y_test).float().mean().item()

    def fit(self, epochs):
        for epoch in range(1, epochs + 1):
            loss = self.train_epoch()
            if epoch == 1 or epoch % 3 == 0:
                print(f"[{epoch:2d}/{epochs}] loss {loss:.4f} test accuracy {self.evaluate():.3f}")


def load():
    x, y = load_digits(return_X_y=True)
    x = torch.tensor(x, dtype=torch.float32)
    x = (x - x.mean()) / x.std()
    return train_test_split(x, torch.tensor(y), test_size=0.2, random_state=0)


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = Trainer(Classifier(), load())
    trainer.fit(epochs=15)
    print(f"final test accuracy {trainer.evaluate():.3f}")
