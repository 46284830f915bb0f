"""Meta-learning of sine tasks: the inner step is differentiated through."""
import math

import torch
from torch import nn
from torch.func import functional_call


def task():
    amp = 0.5 + 2 * torch.rand(1)
    phase = math.pi * torch.rand(1)

    def draw(n):
        x = torch.rand(n, 1) * 6 - 3
        return x, amp * torch.sin(x + phase)

    return draw


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, x):
        return self.net(x)


def adapt(model, x, y, lr=0.1, create_graph=True):
    params = dict(model.named_parameters())
    loss = nn.functional.mse_loss(functional_call(model, params, (x,)), y)
    grads = torch.autograd.grad(loss, list(params.values()), create_graph=create_graph)
    return {k: p - lr * g for (k, p), g in zip(params.items(), grads)}


torch.manual_seed(157)
model = Learner()
meta = torch.optim.Adam(model.parameters(), lr=4e-3)
running = []
for it in range(1, 601):
    meta.zero_grad()
    outer = 0.0
    for _ in range(4):
        draw = task()
        fast = adapt(model, *draw(10))
        x, y = draw(10)
        outer = outer + nn.functional.mse_loss(functional_call(model, fast, (x,)), y) / 4
    outer.backward()
    meta.step()
    running.append(outer.item())
    if it % 50 == 0:
        print(f"meta step {it}: loss after adaptation {sum(running[-50:]) / 50:.4f}")
