"""A digits classifier whose first hidden layer is dead: every one of its biases starts at -10, so no
ReLU behind it ever fires and no example reaches the rest of the network."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)


def linear(n_in, n_out, bias):
    layer = nn.Linear(n_in, n_out)
    nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
    nn.init.constant_(layer.bias, bias)
    return layer


X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X / 16.0, y, test_size=0.25, random_state=0)
X_train = torch.tensor(X_train, dtype=torch.float32)
X_test = torch.tensor(X_test, dtype=torch.float32)
y_train = torch.tensor(y_train)
y_test = torch.tensor(y_test)
loader = DataLoader(TensorDataset(X_train, y_train), batch_size=64, shuffle=True)

model = nn.Sequential(
    linear(64, 128, bias=-10.0),
    nn.ReLU(),
    linear(128, 64, bias=0.0),
    nn.ReLU(),
    linear(64, 10, bias=0.0),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

for epoch in range(12):
    total = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = criterion(model(xb), yb)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(xb)
    if epoch % 3 == 2:
        print(f"epoch {epoch + 1}: train loss {total / len(X_train):.4f}")

with torch.no_grad():
    accuracy = (model(X_test).argmax(1) == y_test).float().mean().item()
print(f"test accuracy: {accuracy:.3f}")
