"""A small decoder-only transformer on text from a second-order Markov source."""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    vocab: int = 12
    block: int = 20
    dim: int = 32
    heads: int = 2
    layers: int = 2
    steps: int = 240
    batch: int = 32
    lr: float = 5e-3


class SelfAttention(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim)
        self.proj = nn.Linear(cfg.dim, cfg.dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in (q, k, v))
        att = q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5
        ahead = torch.ones(t, t, dtype=torch.bool).triu(1)
        att = att.masked_fill(ahead, float("-inf"))
        y = att.softmax(dim=-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(cfg.dim), nn.LayerNorm(cfg.dim)
        self.attn = SelfAttention(cfg)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.tok = nn.Embedding(cfg.vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.block, cfg.dim)
        self.blocks = nn.Sequential(*[Block(cfg) for _ in range(cfg.layers)])
        self.norm = nn.LayerNorm(cfg.dim)
        self.head = nn.Linear(cfg.dim, cfg.vocab)

    def forward(self, ids):
        h = self.tok(ids) + self.pos(torch.arange(ids.size(1)))
        return self.head(self.norm(self.blocks(h)))


def source(cfg, n):
    table = (2.0 * torch.randn(cfg.vocab, cfg.vocab, cfg.vocab)).softmax(-1)
    s = torch.randint(cfg.vocab, (n, cfg.block + 1))
    for t in range(2, cfg.block + 1):
        s[:, t] = torch.multinomial(table[s[:, t - 2], s[:, t - 1]], 1)[:, 0]
    return s, table


def main(cfg=Config()):
    torch.manual_seed(17)
    data, table = source(cfg, 4000)
    entropy = -(table * table.log()).sum(-1).mean()
    model = GPT(cfg)
    opt = torch.optim.AdamW(model.parameters(), lr=cfg.lr)
    for step in range(cfg.steps):
        seq = data[torch.randint(3800, (cfg.batch,))]
        logits = model(seq[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), seq[:, 1:].flatten())
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == cfg.steps - 1:
            print(f"step {step} loss {loss.item():.3f} (source entropy about {entropy:.3f})")
    model.eval()
    with torch.no_grad():
        seq = data[3800:]
        nll = [F.cross_entropy(model(seq[:, :t])[:, -1], seq[:, t]).item() for t in range(4, cfg.block, 4)]
    print(f"next word given only the past: {sum(nll) / len(nll):.3f}")


if __name__ == "__main__":
    main()
