"""Sequence tagging: is the current symbol the same as k steps before? Embedding, GRU, tag head."""
import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, n_symbols=5, d=12, h=32):
        super().__init__()
        self.embed = nn.Embedding(n_symbols, d)
        self.encoder = nn.GRU(d, h, batch_first=True)
        self.tag = nn.Linear(h, 1)

    def forward(self, s):
        return self.tag(self.encoder(self.embed(s))[0]).squeeze(-1)

    def head_parameters(self):
        return self.tag.parameters()


def make(n, length=20, k=2):
    s = torch.randint(0, 5, (n, length))
    y = torch.zeros(n, length)
    y[:, k:] = (s[:, k:] == s[:, :-k]).float()
    return s, y


torch.manual_seed(57)
tagger = Tagger()
tagger.requires_grad_(False)
for p in tagger.head_parameters():
    p.requires_grad_(True)
opt = torch.optim.Adam(filter(lambda p: p.requires_grad, tagger.parameters()), lr=5e-3)
lossf = nn.BCEWithLogitsLoss()
val_s, val_y = make(300)
for step in range(500):
    s, y = make(32)
    loss = lossf(tagger(s), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 49:
        with torch.no_grad():
            out = tagger(val_s)
            f_acc = ((out > 0).float() == val_y).float().mean().item()
        print(f"step {step + 1}: loss {loss.item():.4f} val loss {lossf(out, val_y).item():.4f} tag acc {f_acc:.3f}")
