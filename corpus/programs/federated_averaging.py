"""Federated averaging over four clients, each with its own share of four Gaussian classes."""
import copy

import torch
import torch.nn as nn


class Client:
    def __init__(self, x, y, batch=30):
        self.x, self.y, self.batch = x, y, batch

    def local_epoch(self, global_model, lr):
        model = copy.deepcopy(global_model)
        opt = torch.optim.SGD(model.parameters(), lr=lr)
        losses = []
        for idx in torch.randperm(len(self.x)).split(self.batch):
            opt.zero_grad()
            loss = nn.functional.cross_entropy(model(self.x[idx]), self.y[idx])
            loss.backward()
            opt.step()
            losses.append(loss.item())
        return model.state_dict(), sum(losses) / len(losses)


def average(states):
    return {k: torch.stack([s[k] for s in states]).mean(0) for k in states[0]}


torch.manual_seed(22)
means = torch.randn(4, 12)


def draw(n):
    y = torch.randint(0, 4, (n,))
    return means[y] + 0.8 * torch.randn(n, 12), y


clients = [Client(*draw(600)) for _ in range(4)]
xt, yt = draw(800)
model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 4))
for rnd in range(25):
    results = [c.local_epoch(model, lr=0.05) for c in clients]
    model.load_state_dict(average([s for s, _ in results]))
    with torch.no_grad():
        acc = (model(xt).argmax(1) == yt).float().mean().item()
    if rnd % 4 == 0:
        print(f"round {rnd} local loss {sum(l for _, l in results) / 4:.4f} global accuracy {acc:.3f}")
