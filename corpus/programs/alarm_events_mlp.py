"""Machine alarms: about 3 % of the hours lead to a failure."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(16)


def hours(n):
    y = (torch.rand(n) < 0.03).float()
    x = torch.randn(n, 12) + 0.35 * y[:, None]
    return TensorDataset(x, y)


class AlarmNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, x):
        return self.net(x).view(-1)


train_set, val_set = random_split(hours(8000), [6000, 2000])
train_loader = DataLoader(train_set, batch_size=128, shuffle=True)
model = AlarmNet()
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=1e-4)
for epoch in range(10):
    model.train()
    for x, y in train_loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        x, y = val_set[:]
        out = model(x)
        pred = (out > 0).float()
        rec = ((pred * y).sum() / y.sum()).item()
        spec = (((1 - pred) * (1 - y)).sum() / (1 - y).sum()).item()
    print(f"epoch {epoch + 1}/10 val loss {criterion(out, y).item():.4f} accuracy {(pred == y).float().mean():.4f} "
          f"recall {rec:.3f} balanced {(rec + spec) / 2:.3f}")
