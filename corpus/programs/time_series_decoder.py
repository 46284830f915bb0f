"""Sequence-to-sequence forecast of two mixed sines, encoder LSTM and decoder cell."""
import math

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.lstm = nn.LSTM(1, h, batch_first=True)

    def forward(self, x):
        return self.lstm(x)[1]


class Decoder(nn.Module):
    def __init__(self, h):
        super().__init__()
        self.cell = nn.LSTMCell(1, h)
        self.out = nn.Linear(h, 1)

    def forward(self, last, state, horizon):
        h, c = (s[0] for s in state)
        y, ys = last, []
        for _ in range(horizon):
            h, c = self.cell(y, (h, c))
            y = self.out(h)
            ys.append(y)
        return torch.cat(ys, 1)


def windows(n, past=24, horizon=8):
    t = torch.arange(past + horizon).float()
    f = 0.2 + 0.5 * torch.rand(n, 1)
    ph = 2 * math.pi * torch.rand(n, 1)
    s = torch.sin(f * t + ph)
    return s[:, :past].unsqueeze(-1), s[:, past:]


torch.manual_seed(56)
encoder, decoder = Encoder(32), Decoder(32)
optimizer = torch.optim.Adam(encoder.parameters(), lr=4e-3)
mse = nn.MSELoss()
vx, vy = windows(300)
for step in range(1, 501):
    x, y = windows(48)
    encoder.zero_grad()
    decoder.zero_grad()
    pred = decoder(x[:, -1], encoder(x), y.shape[1])
    loss = mse(pred, y)
    loss.backward()
    optimizer.step()
    if step % 50 == 0:
        with torch.no_grad():
            val = mse(decoder(vx[:, -1], encoder(vx), 8), vy).item()
        print(f"step {step} loss {loss.item():.4f} val {val:.4f}")
