"""Pairwise ranking with four micro-batches (query groups of unequal difficulty) per update."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Ranker(nn.Module):
    def __init__(self, d=12):
        super().__init__()
        self.score = nn.Sequential(nn.Linear(d, 32), nn.Tanh(), nn.Linear(32, 1))

    def forward(self, docs):
        return self.score(docs).squeeze(-1)


def groups(markets, n=32, d=12):
    """One micro-batch for each market; the markets have different preferences and scales."""
    for k, pref in enumerate(markets):
        a, b = torch.randn(2, n, d)
        a[:, -4:], b[:, -4:] = 0.0, 0.0
        a[:, d - 4 + k], b[:, d - 4 + k] = 1.0, 1.0
        win = ((a - b)[:, :8] @ pref > 0).float()
        yield a, b, win


def evaluate(model, markets):
    accs = []
    with torch.no_grad():
        for a, b, win in groups(markets, n=500):
            accs.append(((model(a) > model(b)).float() == win).float().mean().item())
    return accs


torch.manual_seed(62)
markets = torch.randn(4, 8)
model = Ranker()
opt = torch.optim.SGD(model.parameters(), lr=1.0)
max_norm = 0.05
for step in range(1, 701):
    opt.zero_grad()
    total = 0.0
    for a, b, win in groups(markets):
        loss = F.binary_cross_entropy_with_logits(model(a) - model(b), win) / 4
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        total += loss.item()
    opt.step()
    if step % 70 == 0:
        print(f"step {step} loss {total:.4f} pair accuracy by market", " ".join(f"{v:.3f}" for v in evaluate(model, markets)))
