"""Semi-supervised: ten labels, the rest by consistency with an averaged copy (buffers averaged too)."""
import copy

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import make_moons

torch.manual_seed(83)
x, y = make_moons(1000, noise=0.08, random_state=83)
x = torch.tensor(x, dtype=torch.float32)
y = torch.tensor(y)
labelled = torch.cat([(y == 0).nonzero()[:8, 0], (y == 1).nonzero()[:8, 0]])

student = nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))
teacher = copy.deepcopy(student).requires_grad_(False)


@torch.no_grad()
def update_teacher(decay):
    for t, s in zip(teacher.parameters(), student.parameters()):
        t.lerp_(s, 1 - decay)
    for t, s in zip(teacher.buffers(), student.buffers()):
        t.copy_(s)


opt = torch.optim.Adam(student.parameters(), lr=3e-3)
for step in range(800):
    unl = x[torch.randint(0, 1000, (64,))]
    batch = torch.cat([x[labelled], unl])
    out = student(batch + 0.1 * torch.randn_like(batch))
    with torch.no_grad():
        goal = teacher(unl + 0.1 * torch.randn_like(unl)).softmax(1)
    sup = F.cross_entropy(out[: len(labelled)], y[labelled])
    cons = F.mse_loss(out[len(labelled) :].softmax(1), goal)
    loss = sup + min(1.0, step / 200) * 8 * cons
    opt.zero_grad()
    loss.backward()
    opt.step()
    update_teacher(0.98)
    if step % 100 == 99:
        student.eval(); teacher.eval()
        with torch.no_grad():
            s_acc = (student(x).argmax(1) == y).float().mean()
            t_acc = (teacher(x).argmax(1) == y).float().mean()
        student.train(); teacher.train()
        print(f"{step + 1} sup {sup.item():.4f} cons {cons.item():.4f} student {s_acc:.3f} teacher {t_acc:.3f}")
