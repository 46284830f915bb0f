"""Toy part-of-speech tagging with variable lengths; key padding mask in attention, -100 in the targets."""
import random

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

PAD = 0
# word ids 1..20; the tag depends on the word and on its left neighbour
TAGS = 5


def tag(words):
    return [(w + (words[i - 1] if i else 0)) % TAGS if w % 2 else w % TAGS for i, w in enumerate(words)]


def batch(n):
    xs, ys = [], []
    for _ in range(n):
        w = [random.randint(1, 20) for _ in range(random.randint(3, 14))]
        xs.append(torch.tensor(w))
        ys.append(torch.tensor(tag(w)))
    return pad_sequence(xs, True, PAD), pad_sequence(ys, True, -100)


class Tagger(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.word = nn.Embedding(21, d, padding_idx=PAD)
        self.left = nn.Linear(d, d)
        self.attn = nn.MultiheadAttention(d, 4, batch_first=True)
        self.norm = nn.LayerNorm(d)
        self.out = nn.Sequential(nn.Linear(d, 96), nn.ReLU(), nn.Linear(96, TAGS))

    def forward(self, x):
        e = self.word(x)
        shifted = torch.cat([torch.zeros_like(e[:, :1]), e[:, :-1]], 1)
        h = e + self.left(shifted)
        a, _ = self.attn(h, h, h, key_padding_mask=x == PAD, need_weights=False)
        return self.out(self.norm(h + 0.5 * a))


random.seed(149)
torch.manual_seed(149)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss(ignore_index=-100)
for step in range(1, 501):
    x, y = batch(48)
    loss = criterion(model(x).transpose(1, 2), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        print(f"step {step} loss {loss.item():.4f}")
model.eval()
with torch.no_grad():
    x, y = batch(400)
    valid = y != -100
    print("tag accuracy", (model(x).argmax(-1)[valid] == y[valid]).float().mean().item())
