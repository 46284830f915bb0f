import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, IterableDataset


class CroppedDigits(IterableDataset):
    """Draws a digit, shifts it by a pixel or so and adds noise."""

    def __init__(self, images, labels, n):
        self.images, self.labels, self.n = images, labels, n

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        count = self.n // (info.num_workers if info else 1)
        for _ in range(count):
            i = np.random.randint(len(self.images))
            img = np.roll(self.images[i], np.random.randint(-1, 2, 2), (0, 1))
            img = img + 0.1 * np.random.randn(8, 8)
            yield torch.tensor(img, dtype=torch.float32).flatten(), int(self.labels[i])


def seed_worker(worker_id):
    np.random.seed(torch.initial_seed() % 2**32)


def main():
    torch.manual_seed(42)
    digits = load_digits()
    images, labels = digits.images / 16.0, digits.target
    train = CroppedDigits(images[:1200], labels[:1200], 1600)
    loader = DataLoader(train, batch_size=32, num_workers=2, worker_init_fn=seed_worker)
    test_x = torch.tensor(images[1200:], dtype=torch.float32).flatten(1)
    test_y = torch.tensor(labels[1200:])
    net = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
    opt = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        total = 0.0
        for x, y in loader:
            opt.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            opt.step()
            total += loss.item()
        with torch.no_grad():
            acc = (net(test_x).argmax(1) == test_y).float().mean()
        print(f"epoch {epoch}  loss {total / 50:.3f}  test {acc:.3f}")


if __name__ == "__main__":
    main()
