"""Which item occurs most often in a bag of up to 10 items? Self-attention with padding."""
import torch
import torch.nn as nn

PAD, ITEMS, MAXLEN = 0, 6, 10


def bags(n, shortest=0):
    lengths = torch.randint(shortest, MAXLEN + 1, (n,))
    tok = torch.randint(1, ITEMS + 1, (n, MAXLEN))
    tok[torch.arange(MAXLEN)[None, :] >= lengths[:, None]] = PAD
    counts = nn.functional.one_hot(tok, ITEMS + 1)[..., 1:].sum(1)
    return tok, counts.argmax(1)


class Attention(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(d, d), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, h, pad):
        score = self.q(h) @ self.k(h).transpose(1, 2) / h.shape[-1] ** 0.5
        score = score.masked_fill(pad[:, None, :], float("-inf"))
        return torch.softmax(score, dim=-1) @ self.v(h)


class BagEncoder(nn.Module):
    def __init__(self, d=32):
        super().__init__()
        self.emb = nn.Embedding(ITEMS + 1, d, padding_idx=PAD)
        self.attn, self.norm = Attention(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))
        self.head = nn.Linear(d, ITEMS)

    def forward(self, tok):
        pad = tok == PAD
        h = self.emb(tok)
        h = h + self.attn(h, pad)
        h = h + self.ff(self.norm(h))
        keep = (~pad).unsqueeze(-1)
        pooled = (h * keep).sum(1) / keep.sum(1).clamp(min=1)
        return self.head(pooled)


torch.manual_seed(28)
model = BagEncoder()
opt = torch.optim.Adam(model.parameters(), lr=2e-3)
loss_fn = nn.CrossEntropyLoss()
val_tok, val_y = bags(400, shortest=1)
for it in range(600):
    tok, y = bags(48, shortest=1)
    loss = loss_fn(model(tok), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 60 == 59 or it in (19, 39):
        with torch.no_grad():
            acc = (model(val_tok).argmax(1) == val_y).float().mean().item()
        print(f"it {it + 1} loss {loss.item():.4f} val acc {acc:.3f}")
