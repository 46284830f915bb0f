"""Pose-like regression (8 joint angles to 4 end points) with layer-wise rates and warm-up."""
import torch
import torch.nn as nn

torch.manual_seed(37)


class PoseNet(nn.Module):
    def __init__(self, width=64, depth=4):
        super().__init__()
        sizes = [8] + [width] * depth
        self.blocks = nn.ModuleList(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:]))
        self.head = nn.Linear(width, 8)

    def forward(self, angles):
        h = angles
        for b in self.blocks:
            h = torch.nn.functional.gelu(b(h))
        return self.head(h)


def kinematics(a):
    c = a.view(-1, 4, 2).cumsum(2)
    return torch.cat([torch.cos(c).sum(2), torch.sin(c).sum(2)], 1)


model = PoseNet()
decay, peak, warmup = 0.75, 2e-3, 20
groups = [{"params": list(m.parameters()), "lr": 0.0, "layer": k}
          for k, m in enumerate([model.head, *reversed(model.blocks)])]
opt = torch.optim.AdamW(groups)


def set_rates(step):
    for g in opt.param_groups:
        if step < warmup:
            g["lr"] = peak * (step + 1) / warmup
        if g["layer"] > 0:
            g["lr"] *= decay ** g["layer"]
        else:
            g["lr"] *= 0.99


test = torch.rand(500, 8) * 3 - 1.5
for step in range(1000):
    set_rates(step)
    a = torch.rand(64, 8) * 3 - 1.5
    loss = nn.functional.mse_loss(model(a), kinematics(a))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 99:
        with torch.no_grad():
            err = nn.functional.mse_loss(model(test), kinematics(test)).item()
        print(f"step {step + 1} loss {loss.item():.4f} test {err:.4f}")
