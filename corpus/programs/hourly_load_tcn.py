"""One-step-ahead forecast of an electric load with a dilated convolution net."""
import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
torch.manual_seed(30)


def load_curve(n):
    t = np.arange(n)
    noise = np.zeros(n)
    for i in range(1, n):
        noise[i] = 0.6 * noise[i - 1] + 0.5 * rng.standard_normal()
    return (np.sin(2 * np.pi * t / 24) + 0.5 * np.sin(2 * np.pi * t / 7) + noise).astype("float32")


class Dilated(nn.Module):
    def __init__(self, channels, dilation):
        super().__init__()
        self.left = 2 * dilation
        self.conv = nn.Conv1d(channels, channels, 3, dilation=dilation)

    def forward(self, x):
        return x + torch.relu(self.conv(nn.functional.pad(x, (self.left, 0))))


class Forecaster(nn.Module):
    def __init__(self, channels=16):
        super().__init__()
        self.inp = nn.Conv1d(1, channels, 1)
        self.body = nn.Sequential(*(Dilated(channels, 2 ** k) for k in range(4)))
        self.out = nn.Conv1d(channels, 1, 1)

    def forward(self, x):
        return self.out(self.body(self.inp(x[:, None])))[:, 0]


series = load_curve(6000)
windows = torch.from_numpy(np.stack([series[i:i + 65] for i in range(0, 5900, 8)]))
train, held = windows[:600], windows[620:]
model = Forecaster()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=16)
for epoch in range(16):
    for w in train[torch.randperm(len(train))].split(40):
        pred = model(w[:, :-1])
        loss = ((pred - w[:, 1:]) ** 2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    sched.step()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1:3d}  mse {loss.item():.4f}")
model.eval()
with torch.no_grad():
    live = model(held[:, :40])[:, -1]          # the future is not known yet
    print(f"live forecast mse {((live - held[:, 40]) ** 2).mean():.4f}   noise floor 0.25")
