import torch
import torch.nn as nn
from sklearn.datasets import make_blobs
from torch.utils.data import DataLoader, TensorDataset


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return torch.softmax(self.layers(x), dim=1)


def main():
    torch.manual_seed(7)
    xs, ys = make_blobs(900, centers=3, cluster_std=1.0, random_state=7)
    x = torch.tensor((xs - xs.mean(0)) / xs.std(0), dtype=torch.float32)
    y = torch.tensor(ys)
    train = DataLoader(TensorDataset(x[:700], y[:700]), batch_size=50, shuffle=True)
    model = Classifier()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for epoch in range(40):
        running = 0.0
        for xb, yb in train:
            optimizer.zero_grad()
            loss = criterion(model(xb), yb)
            loss.backward()
            optimizer.step()
            running += loss.item()
        if epoch % 5 == 4:
            with torch.no_grad():
                acc = (model(x[700:]).argmax(1) == y[700:]).float().mean().item()
            print(f"epoch {epoch + 1} loss {running / len(train):.4f} test accuracy {acc:.3f}")


if __name__ == "__main__":
    main()
