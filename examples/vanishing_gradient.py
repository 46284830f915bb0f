"""A digits classifier with twelve sigmoid layers: the gradient shrinks at each of them and has vanished
before it reaches the first layers, so the loss stays near ln 10."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


def load_data():
    digits = load_digits()
    x = digits.data.astype("float32") / 16.0
    x = (x - x.mean()) / x.std()
    split = train_test_split(x, digits.target, test_size=0.2, random_state=0, stratify=digits.target)
    return [torch.from_numpy(part) for part in split]


def build_model(depth=12, width=64):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(64 if not layers else width, width), nn.Sigmoid()]
    layers.append(nn.Linear(width, 10))
    return nn.Sequential(*layers)


def train(model, x, y, epochs=15, batch_size=64):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_fn = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        losses = []
        for idx in torch.randperm(len(x)).split(batch_size):
            optimizer.zero_grad()
            loss = loss_fn(model(x[idx]), y[idx])
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        if epoch % 3 == 0 or epoch == epochs - 1:
            print(f"epoch {epoch:2d}  mean loss {sum(losses) / len(losses):.4f}")


def main():
    torch.manual_seed(0)
    x_train, x_test, y_train, y_test = load_data()
    model = build_model()
    train(model, x_train, y_train)
    with torch.no_grad():
        accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean()
    print(f"test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
