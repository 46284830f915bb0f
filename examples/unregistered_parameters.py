"""A digits classifier that keeps its hidden layers in a plain Python list, so model.parameters() does not
contain them and the optimizer never updates them."""

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class DeepMLP(nn.Module):
    def __init__(self, in_features: int, n_classes: int, width: int = 32, depth: int = 4):
        super().__init__()
        self.hidden = [nn.Linear(in_features if i == 0 else width, width) for i in range(depth)]
        self.head = nn.Linear(width, n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.hidden:
            x = F.relu(layer(x))
        return self.head(x)


def main() -> None:
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    x = (x - x.mean()) / x.std()
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.2, random_state=0, stratify=y)
    train_set = TensorDataset(torch.tensor(x_train, dtype=torch.float32), torch.tensor(y_train))
    loader = DataLoader(train_set, batch_size=64, shuffle=True)

    model = DeepMLP(64, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(15):
        total, count = 0.0, 0
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(yb)
            count += len(yb)
        if epoch % 2 == 0:
            print(f"epoch {epoch:2d}: loss {total / count:.4f}")

    with torch.no_grad():
        logits = model(torch.tensor(x_test, dtype=torch.float32))
    accuracy = (logits.argmax(dim=1) == torch.tensor(y_test)).float().mean().item()
    print(f"test accuracy: {accuracy:.3f}")


if __name__ == "__main__":
    main()
