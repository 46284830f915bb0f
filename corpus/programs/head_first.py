"""Digits with a convolutional encoder: the head alone in the first two epochs, everything after that."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

HEAD_ONLY_EPOCHS = 2
EPOCHS = 9
BATCH = 64


def build_encoder(width=6):
    return nn.Sequential(
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, stride=2, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Flatten(),
    )


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = build_encoder()
        self.head = nn.Linear(6 * 2 * 2, 10)

    def forward(self, x):
        return self.head(self.encoder(x))


def get_data():
    bunch = load_digits()
    images = torch.as_tensor(bunch.images, dtype=torch.float32)[:, None] / 16
    labels = torch.as_tensor(bunch.target)
    order = torch.randperm(len(images))
    images, labels = images[order], labels[order]
    return (images[:1400], labels[:1400]), (images[1400:], labels[1400:])


def freeze(module):
    for param in module.parameters():
        param.requires_grad = False


def unfreeze(module):
    for param in module.parameters():
        param.require_grad = True


def run_epoch(model, optimizer, images, labels):
    model.train()
    losses = []
    for idx in torch.randperm(len(images)).split(BATCH):
        loss = F.cross_entropy(model(images[idx]), labels[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses) / len(losses)


def main():
    torch.manual_seed(1234)
    (train_x, train_y), (test_x, test_y) = get_data()
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    freeze(model.encoder)
    for epoch in range(EPOCHS):
        if epoch == HEAD_ONLY_EPOCHS:
            unfreeze(model.encoder)
        train_loss = run_epoch(model, optimizer, train_x, train_y)
        model.eval()
        with torch.no_grad():
            logits = model(test_x)
        test_loss = F.cross_entropy(logits, test_y).item()
        accuracy = (logits.argmax(1) == test_y).float().mean().item()
        print(f"{epoch}: train {train_loss:.3f}, test {test_loss:.3f}, accuracy {accuracy:.1%}")


if __name__ == "__main__":
    main()
