"""Deep MLP with batch norm on digits."""
import torch
import torch.nn as nn
from sklearn.datasets import load_digits


def block(a, b):
    return nn.Sequential(nn.Linear(a, b, bias=False), nn.BatchNorm1d(b), nn.ReLU())


class DeepMLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(block(64, 24), block(24, 24), block(24, 24), block(24, 24), block(24, 24))
        self.classifier = nn.Linear(24, 10)

    def forward(self, x):
        return self.classifier(self.features(x))


torch.manual_seed(49)
X, y = load_digits(return_X_y=True)
X, y = torch.tensor(X, dtype=torch.float32) / 16, torch.tensor(y)
shuffled = torch.randperm(len(X))
train_idx, test_idx = shuffled[:1400], shuffled[1400:]

model = DeepMLP()
trainable = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.Adam(trainable, lr=1e-3)
criterion = nn.CrossEntropyLoss()
for epoch in range(10):
    model.train()
    running = 0.0
    for idx in train_idx[torch.randperm(1400)].split(64):
        optimizer.zero_grad()
        loss = criterion(model(X[idx]), y[idx])
        loss.backward()
        optimizer.step()
        running += loss.item() * len(idx) / 1400
    model.eval()
    with torch.no_grad():
        acc = (model(X[test_idx]).argmax(1) == y[test_idx]).float().mean().item()
    print(f"Epoch {epoch + 1}: train loss {running:.4f}, test acc {acc:.4f}")
