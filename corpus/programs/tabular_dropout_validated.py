"""Breast-cancer rows, MLP with dropout; the report after training is over the test rows."""
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from torch import nn


class Regularised(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.net = nn.Sequential(
            nn.Dropout(0.3),
            nn.Linear(n, 64), nn.ReLU(), nn.Dropout(0.7),
            nn.Linear(64, 64), nn.ReLU(), nn.Dropout(0.7),
            nn.Linear(64, 1),
        )

    def forward(self, x):
        return self.net(x).squeeze(-1)


def evaluate(model, x, y):
    model.eval()
    with torch.no_grad():
        logit = model(x)
        loss = nn.functional.binary_cross_entropy_with_logits(logit, y)
        acc = ((logit > 0).float() == y).float().mean()
    model.train()
    return loss.item(), acc.item()


torch.manual_seed(22)
data = load_breast_cancer()
x = torch.tensor(scale(data.data), dtype=torch.float32)
y = torch.tensor(data.target, dtype=torch.float32)
perm = torch.randperm(len(x))
train, test = perm[:400], perm[400:]

model = Regularised(x.shape[1])
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
model.train()
best = 1e9
for epoch in range(40):
    for idx in train[torch.randperm(400)].split(40):
        loss = nn.functional.binary_cross_entropy_with_logits(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    val_loss, val_acc = evaluate(model, x[test], y[test])
    best = min(best, val_loss)
    if epoch % 4 == 3:
        print(f"epoch {epoch + 1:2d} | train {loss.item():.4f} | val {val_loss:.4f} | acc {val_acc:.3f} | best {best:.4f}")
