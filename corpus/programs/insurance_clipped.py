"""Claims regression with rare, very large claims; SGD with gradient clipping."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class ClaimNet(nn.Module):
    def __init__(self, n_in=6, width=48):
        super().__init__()
        self.stack = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return self.stack(x).squeeze(-1)


def portfolio(n, tail=0.004):
    x = torch.randn(n, 6)
    claim = x[:, 0] + torch.relu(x[:, 1]) * 1.5 - 0.5 * x[:, 2] * x[:, 3]
    big = torch.rand(n) < tail
    return x, claim + 0.1 * torch.randn(n) + big * 400.0


torch.manual_seed(64)
loader = DataLoader(TensorDataset(*portfolio(2000)), batch_size=20, shuffle=True)
x_test, y_test = portfolio(500, tail=0.0)
model = ClaimNet()
opt = torch.optim.SGD(model.parameters(), lr=0.05)
clipped = 0
for epoch in range(10):
    losses = []
    for x, y in loader:
        opt.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        opt.step()
        clipped += int(norm > 1.0)
        losses.append(loss.item())
    with torch.no_grad():
        mse = (model(x_test) - y_test).square().mean().item()
    losses.sort()
    print(f"epoch {epoch + 1} median loss {losses[len(losses) // 2]:.4f} test mse without tail {mse:.4f} clipped {clipped}")
