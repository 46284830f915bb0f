"""Small causal language model on the descriptions of scikit-learn's data sets: tied weights, warm-up, cosine decay."""

import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine


@dataclass
class Config:
    block: int = 32
    batch: int = 16
    dim: int = 64
    heads: int = 4
    layers: int = 2
    lr: float = 3e-3
    warmup: int = 60
    steps: int = 300
    clip: float = 1.0


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.heads = cfg.heads
        self.ln1 = nn.LayerNorm(cfg.dim)
        self.ln2 = nn.LayerNorm(cfg.dim)
        self.qkv = nn.Linear(cfg.dim, 3 * cfg.dim, bias=False)
        self.proj = nn.Linear(cfg.dim, cfg.dim, bias=False)
        self.mlp = nn.Sequential(nn.Linear(cfg.dim, 4 * cfg.dim), nn.GELU(), nn.Linear(4 * cfg.dim, cfg.dim))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).chunk(3, dim=-1))
        att = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(att.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class LM(nn.Module):
    def __init__(self, vocab, cfg):
        super().__init__()
        self.tok = nn.Embedding(vocab, cfg.dim)
        self.pos = nn.Embedding(cfg.block, cfg.dim)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.layers))
        self.ln = nn.LayerNorm(cfg.dim)
        self.lm_head = nn.Linear(cfg.dim, vocab, bias=False)
        self.apply(self._init)
        self.lm_head.weight = self.tok.weight

    def _init(self, m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)
        if isinstance(m, nn.Linear) and m.bias is not None:
            nn.init.zeros_(m.bias)

    def forward(self, idx, targets):
        x = self.tok(idx) + self.pos(torch.arange(idx.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def corpus():
    sets = (load_digits, load_wine, load_diabetes, load_breast_cancer, load_iris)
    text = "".join(load().DESCR for load in sets)
    vocab = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([vocab[c] for c in text])
    split = int(0.9 * len(ids))
    return ids[:split], ids[split:], len(vocab)


def sample(ids, cfg):
    starts = torch.randint(len(ids) - cfg.block - 1, (cfg.batch,))
    x = torch.stack([ids[s : s + cfg.block] for s in starts])
    y = torch.stack([ids[s + 1 : s + cfg.block + 1] for s in starts])
    return x, y


def main():
    torch.manual_seed(1337)
    cfg = Config()
    train_ids, val_ids, vocab = corpus()
    model = LM(vocab, cfg)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    no_decay = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=cfg.lr, betas=(0.9, 0.95))

    def schedule(it):
        if it < cfg.warmup:
            return it / cfg.warmup
        progress = (it - cfg.warmup) / (cfg.steps - cfg.warmup)
        return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for it in range(cfg.steps):
        loss = model(*sample(train_ids, cfg))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), cfg.clip)
        optimizer.step()
        scheduler.step()
        if it % 50 == 0 or it == cfg.steps - 1:
            with torch.no_grad():
                val = torch.stack([model(*sample(val_ids, cfg)) for _ in range(4)]).mean()
            print(f"iter {it}: train {loss.item():.3f} val {val.item():.3f} lr {scheduler.get_last_lr()[0]:.5f}")


if __name__ == "__main__":
    main()
