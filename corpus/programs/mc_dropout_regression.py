"""Predictive uncertainty with Monte-Carlo dropout: dropout stays on at prediction time."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class MCRegressor(nn.Module):
    def __init__(self, p=0.1):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(1, 64), nn.Linear(64, 64), nn.Linear(64, 1)
        self.p = p

    def forward(self, x):
        # training=True: samples from the approximate posterior are wanted everywhere
        h = F.dropout(torch.tanh(self.fc1(x)), self.p, training=True)
        h = F.dropout(torch.tanh(self.fc2(h)), self.p, training=True)
        return self.fc3(h)

    @torch.no_grad()
    def predict(self, x, samples=50):
        self.eval()
        draws = torch.stack([self(x) for _ in range(samples)])
        self.train()
        return draws.mean(0), draws.std(0)


def f(x):
    return torch.sin(2.5 * x) + 0.3 * x


torch.manual_seed(127)
x = torch.rand(400, 1) * 4 - 2
y = f(x) + 0.05 * torch.randn_like(x)
model = MCRegressor()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, weight_decay=1e-5)
for epoch in range(300):
    for rows in torch.randperm(400).split(100):
        loss = F.mse_loss(model(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 60 == 59:
        inside = torch.linspace(-2, 2, 80)[:, None]
        mean, std = model.predict(inside)
        _, far = model.predict(torch.linspace(4, 6, 40)[:, None])
        print(f"epoch {epoch + 1} loss {loss.item():.4f} rmse of the mean {F.mse_loss(mean, f(inside)).sqrt():.3f} std inside {std.mean():.3f} outside {far.mean():.3f}")
