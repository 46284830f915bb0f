"""A digits classifier whose weights all start at the same constant: the units of each hidden layer are
identical and remain so, which leaves the network one unit wide."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn, optim


def init_weights(module):
    if isinstance(module, nn.Linear):
        nn.init.constant_(module.weight, 0.05)
        nn.init.zeros_(module.bias)


def get_data():
    x, y = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / 16.0, y, test_size=0.2, random_state=42)
    return (
        torch.as_tensor(x_train, dtype=torch.float32),
        torch.as_tensor(y_train),
        torch.as_tensor(x_test, dtype=torch.float32),
        torch.as_tensor(y_test),
    )


torch.manual_seed(0)
x_train, y_train, x_test, y_test = get_data()

model = nn.Sequential(
    nn.Linear(64, 64),
    nn.ReLU(),
    nn.Linear(64, 32),
    nn.ReLU(),
    nn.Linear(32, 10),
)
model.apply(init_weights)
optimizer = optim.Adam(model.parameters(), lr=2e-3)
criterion = nn.CrossEntropyLoss()

step = 0
while step < 350:
    for idx in torch.randperm(len(x_train)).split(64):
        optimizer.zero_grad()
        loss = criterion(model(x_train[idx]), y_train[idx])
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")

with torch.no_grad():
    accuracy = (model(x_test).argmax(dim=1) == y_test).float().mean().item()
print(f"test accuracy {accuracy:.3f}")
