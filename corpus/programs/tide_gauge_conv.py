"""Storm surge from wind and pressure: one long record, a convolution along its hours, random windows of it."""
import numpy as np
import torch
import torch.nn as nn

rng = np.random.default_rng(3)
torch.manual_seed(3)

hours = 4000
forcing = np.zeros((hours, 3), dtype=np.float32)
for t in range(1, hours):
    forcing[t] = 0.9 * forcing[t - 1] + rng.standard_normal(3) * [0.4, 0.3, 0.5]
response = np.exp(-np.arange(12) / 4.0)
surge = np.convolve(forcing @ np.array([0.5, -0.4, 0.2]), response / response.sum(), mode="full")[:hours]
record = torch.from_numpy(forcing)
level = torch.from_numpy((surge + 0.02 * rng.standard_normal(hours)).astype(np.float32))


class Surge(nn.Module):
    """Takes hours × measurements, gives a level for each hour."""

    def __init__(self, width=24):
        super().__init__()
        self.past = nn.Conv1d(3, width, 13)
        self.mix = nn.Conv1d(width, width, 1)
        self.out = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        x = nn.functional.pad(x.t().unsqueeze(0), (12, 0))
        x = torch.relu(self.past(x))
        x = torch.relu(self.mix(x))
        return self.out(x)[0, 0]


model = Surge()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for step in range(1, 401):
    at = int(rng.integers(0, 3000 - 96))
    window = slice(at, at + 96)
    loss = nn.functional.mse_loss(model(record[window]), level[window])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 80 == 0:
        with torch.no_grad():
            error = nn.functional.mse_loss(model(record[3000:]), level[3000:]).item()
        print(f"step {step} loss {loss.item():.5f} last thousand hours {error:.5f} variance {level[3000:].var().item():.4f}")
