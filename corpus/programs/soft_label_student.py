"""Knowledge distillation: hard labels are few, the teacher labels everything softly."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class KD:
    temperature: float = 3.0
    alpha: float = 0.9
    lr: float = 2e-3
    epochs: int = 30


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.f1, self.f2 = nn.Linear(12, width), nn.Linear(width, width)
        self.out = nn.Linear(width, 6)

    def forward(self, x):
        return self.out(F.relu(self.f2(F.relu(self.f1(x)))))


def world(n, rule):
    x = torch.randn(n, 12)
    with torch.no_grad():
        return x, (2 * rule(x)).argmax(1)


def supervised(net, x, y, epochs):
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for _ in range(epochs):
        for i in torch.randperm(len(x)).split(100):
            opt.zero_grad()
            F.cross_entropy(net(x[i]), y[i]).backward()
            opt.step()


def distil(student, teacher, x, y, labelled, cfg):
    opt = torch.optim.Adam(student.parameters(), lr=cfg.lr)
    for epoch in range(cfg.epochs):
        for i in torch.randperm(len(x)).split(64):
            student_logits = student(x[i])
            with torch.no_grad():
                teacher_logits = teacher(x[i])
            soft = F.kl_div(F.log_softmax(student_logits / cfg.temperature, 1), F.softmax(teacher_logits / cfg.temperature, 1),
                            reduction="batchmean") * cfg.temperature ** 2
            known = labelled[i]
            hard = F.cross_entropy(student_logits[known], y[i][known]) if known.any() else student_logits.sum() * 0
            loss = cfg.alpha * soft + (1 - cfg.alpha) * hard
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1} loss {loss.item():.4f}")


torch.manual_seed(111)
rule = Net(24)
for p in rule.parameters():
    nn.init.normal_(p, std=0.5)
x, y = world(3000, rule)
xt, yt = world(1000, rule)
labelled = torch.rand(3000) < 0.08
teacher, student = Net(128), Net(32)
supervised(teacher, x, y, 15)
distil(student, teacher, x, y, labelled, KD())
with torch.no_grad():
    for name, net in ("teacher", teacher), ("student", student):
        print(name, "accuracy", round((net(xt).argmax(1) == yt).float().mean().item(), 3))
    print("agreement", round((student(xt).argmax(1) == teacher(xt).argmax(1)).float().mean().item(), 3))
