"""Key-point regression with a loss on bone lengths, bf16 autocast and a loss scaler."""
import torch
import torch.nn as nn


class PoseRegressor(nn.Module):
    def __init__(self, joints=6):
        super().__init__()
        self.joints = joints
        self.net = nn.Sequential(nn.Linear(20, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, joints * 2))

    def forward(self, x):
        return self.net(x).view(-1, self.joints, 2)


PARENT = [0, 0, 1, 2, 3, 4]


def bone_lengths(pose):
    d = pose - pose[:, PARENT]
    return torch.sqrt((d ** 2).sum(-1))


def loss_fn(pred, true):
    return (pred - true).pow(2).mean() + 0.1 * (bone_lengths(pred) - bone_lengths(true)).abs().mean()


torch.manual_seed(66)
mix = torch.randn(20, 12) / 20 ** 0.5


def samples(n):
    x = torch.randn(n, 20)
    return x, torch.tanh(x @ mix).view(n, 6, 2)


net = PoseRegressor()
opt = torch.optim.AdamW(net.parameters(), lr=2e-3)
scaler = torch.amp.GradScaler("cpu")
vx, vy = samples(400)
for step in range(1, 601):
    x, y = samples(64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pred = net(x)
    loss = loss_fn(pred.float(), y)
    opt.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step % 60 == 0:
        with torch.no_grad():
            val = loss_fn(net(vx), vy).item()
        print(f"step {step} loss {loss.item():.4f} val {val:.4f} scale {scaler.get_scale():.3g}")
