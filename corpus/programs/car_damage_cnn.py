"""Where is the damage: front (0), side (1) or rear (2)? A small CNN on 16x16 pictures."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset


def pictures(n):
    y = torch.randint(0, 3, (n,))
    x = 0.3 * torch.randn(n, 1, 16, 16)
    for k in range(3):
        rows = slice(5 * k, 5 * k + 5)
        x[y == k, :, rows, 4:12] += 0.8
    return x, y.float()


class DamageNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 8, 3)
        self.c2 = nn.Conv2d(8, 16, 3)
        self.d1 = nn.Linear(16 * 4, 64)
        self.d2 = nn.Linear(64, 1)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c1(x)), 2)
        x = F.max_pool2d(F.relu(self.c2(x)), 2)
        x = F.relu(self.d1(x.flatten(1)))
        return self.d2(x).squeeze(1)


torch.manual_seed(91)
train_x, train_y = pictures(600)
test_x, test_y = pictures(150)
model = DamageNet()
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
loss_function = nn.BCEWithLogitsLoss()
for epoch in range(10):
    for x, y in DataLoader(TensorDataset(train_x, train_y), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(model(x), y)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        guess = torch.sigmoid(model(test_x)).round()
    print(f"epoch {epoch + 1} loss {loss.item():.4f} accuracy {(guess == test_y).float().mean():.3f}")
