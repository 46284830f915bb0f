"""A digits classifier trained with Adam at a learning rate a hundred times too high (0.3 instead of
0.003): the loss bounces around and never settles."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DigitsTrainer:
    def __init__(self, learning_rate: float = 0.3, batch_size: int = 64, seed: int = 0) -> None:
        torch.manual_seed(seed)
        digits = load_digits()
        x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16.0
        y = torch.tensor(digits.target)
        x_train, self.x_test, y_train, self.y_test = train_test_split(x, y, test_size=0.2, random_state=0)
        self.loader = DataLoader(TensorDataset(x_train, y_train), batch_size=batch_size, shuffle=True)
        self.model = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.Tanh(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * 4 * 4, 64),
            nn.Tanh(),
            nn.Linear(64, 10),
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=learning_rate)
        self.loss_fn = nn.CrossEntropyLoss()

    def run_epoch(self) -> float:
        total = 0.0
        for images, labels in self.loader:
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.model(images), labels)
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        return total / len(self.loader)

    @torch.no_grad()
    def test_accuracy(self) -> float:
        return (self.model(self.x_test).argmax(dim=1) == self.y_test).float().mean().item()

    def fit(self, epochs: int) -> None:
        for epoch in range(epochs):
            loss = self.run_epoch()
            print(f"epoch {epoch + 1:2d} | loss {loss:8.4f} | test accuracy {self.test_accuracy():.3f}")


def main() -> None:
    trainer = DigitsTrainer()
    trainer.fit(epochs=10)
    print(f"final test accuracy: {trainer.test_accuracy():.3f}")


if __name__ == "__main__":
    main()
