"""Classify binary sequences by which symbol dominates. Keeps the loss history for a plot afterwards."""
import torch
from torch import nn

torch.manual_seed(283)


def get_batch(n=32, t=15):
    x = torch.randint(0, 2, (n, t))
    return nn.functional.one_hot(x, 2).float(), (x.sum(1) > t // 2).long()


class Majority(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(2, 16, batch_first=True)
        self.fc = nn.Linear(16, 2)

    def forward(self, x):
        out, _ = self.lstm(x)
        return self.fc(out[:, -1])


model = Majority()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
criterion = nn.CrossEntropyLoss()
total_loss = 0
loss_history = []
for step in range(1, 401):
    x, y = get_batch()
    loss = criterion(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    total_loss += loss
    loss_history.append(loss)
    if step % 50 == 0:
        print(f"step {step} mean loss so far {total_loss / step:.4f} last {loss:.4f}")
