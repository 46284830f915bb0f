"""Distil a wide teacher into a small student with soft targets."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(78)
data = load_digits()
x = torch.tensor(data.data / 16, dtype=torch.float32)
y = torch.tensor(data.target)
tr, te = slice(0, 1300), slice(1300, 1797)


def mlp(width):
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


teacher, student = mlp(256), mlp(12)
opt = torch.optim.Adam(teacher.parameters(), lr=2e-3)
for _ in range(300):
    b = torch.randint(0, 1300, (64,))
    opt.zero_grad()
    F.cross_entropy(teacher(x[b]), y[b]).backward()
    opt.step()
with torch.no_grad():
    print("teacher", (teacher(x[te]).argmax(1) == y[te]).float().mean().item())
teacher.requires_grad_(False)

T = 2.0
opt = torch.optim.Adam(student.parameters(), lr=3e-3)
for it in range(1, 801):
    b = torch.randint(0, 1300, (64,))
    soft_t = F.softmax(teacher(x[b]) / T, dim=1)
    soft_s = F.softmax(student(x[b]) / T, dim=1)
    loss = F.kl_div(soft_s, soft_t, reduction="batchmean") * T * T
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 100 == 0:
        with torch.no_grad():
            s = student(x[te])
            acc = (s.argmax(1) == y[te]).float().mean().item()
            agree = F.kl_div(F.log_softmax(s, 1), F.softmax(teacher(x[te]), 1), reduction="batchmean").item()
        print(f"{it}: kl loss {loss.item():.4f} student accuracy {acc:.3f} true divergence {agree:.4f}")
