"""Is a bracket string balanced? Encoder from torch.nn, linear warm-up from zero and linear decay."""
import random

import torch
import torch.nn as nn


def make_string(length):
    if random.random() < 0.5:
        s = "".join(random.choice("()") for _ in range(length))
    else:
        s, depth = "", 0
        for i in range(length):
            left = length - i
            if depth == 0:
                c = "("
            elif depth == left:
                c = ")"
            else:
                c = random.choice("()")
            depth += 1 if c == "(" else -1
            s += c
    return s


def balanced(s):
    depth = 0
    for c in s:
        depth += 1 if c == "(" else -1
        if depth < 0:
            return 0
    return int(depth == 0)


def get_batch(n, length=12):
    strings = [make_string(length) for _ in range(n)]
    x = torch.tensor([[1 if c == "(" else 2 for c in s] for s in strings])
    return x, torch.tensor([balanced(s) for s in strings])


class Model(nn.Module):
    def __init__(self, d=32, length=12):
        super().__init__()
        self.tok = nn.Embedding(3, d)
        self.pos = nn.Parameter(torch.randn(length + 1, d) * 0.1)
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.enc = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(d, 2)

    def forward(self, x):
        cls = torch.zeros(len(x), 1, dtype=torch.long)
        h = self.tok(torch.cat([cls, x], 1)) + self.pos
        return self.head(self.enc(h)[:, 0])


random.seed(9)
torch.manual_seed(9)
model = Model()
TOTAL, WARM = 450, 60
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
sched = torch.optim.lr_scheduler.LambdaLR(opt, lambda s: s / WARM if s < WARM else max(0.0, (TOTAL - s) / (TOTAL - WARM)))
for step in range(TOTAL):
    x, y = get_batch(64)
    loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 50 == 0:
        print(f"{step:4d} lr {sched.get_last_lr()[0]:.2e} loss {loss.item():.4f}")
model.eval()
x, y = get_batch(600)
with torch.no_grad():
    print(f"accuracy {(model(x).argmax(1) == y).float().mean():.3f}")
