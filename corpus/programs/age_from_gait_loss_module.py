"""Age regression from gait curves with a small 1-D CNN and a home-made Huber loss."""
import torch
from torch import nn


class SmoothLoss(nn.Module):
    def __init__(self, delta=1.0):
        super().__init__()
        self.delta = delta

    def forward(self, pred, age):
        err = torch.abs(pred - age)
        quad = torch.clamp(err, max=self.delta)
        return (0.5 * quad ** 2 + self.delta * (err - quad)).mean()


class GaitCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(nn.Conv1d(1, 8, 5, stride=2), nn.ReLU(), nn.Conv1d(8, 16, 5, stride=2), nn.ReLU(), nn.AdaptiveAvgPool1d(4))
        self.fc = nn.Linear(64, 1)

    def forward(self, x):
        return self.fc(self.conv(x).flatten(1)).flatten()


def gait(n):
    age = torch.randn(n)
    t = torch.linspace(0, 12, 64)
    speed = 1.5 - 0.3 * age
    curve = torch.sin(speed[:, None] * t) + 0.2 * torch.randn(n, 64)
    return curve.unsqueeze(1), age.unsqueeze(1)


torch.manual_seed(83)
x, age = gait(2000)
model, loss_fn = GaitCNN(), SmoothLoss()
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.05, total_steps=500)
for step in range(500):
    b = torch.randint(0, 1700, (40,))
    loss = loss_fn(model(x[b]), age[b])
    opt.zero_grad()
    loss.backward()
    opt.step()
    scheduler.step()
    if step % 50 == 49:
        print(f"step {step + 1} loss {loss.item():.4f}")
with torch.no_grad():
    out = model(x[1700:])
    print("mean abs error in standard deviations:", (out - age[1700:].flatten()).abs().mean().item())
