"""Word-level transformer LM with plain SGD, settings taken over from the recurrent model."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(81)

V, T = 24, 12


class Config:
    lr = 0.3
    clip = 0.002
    d_model = 32
    n_head = 4
    batch = 32
    steps = 500
    log_every = 50


class LM(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, c.d_model), nn.Embedding(T, c.d_model)
        self.block = nn.TransformerEncoderLayer(c.d_model, c.n_head, 64, dropout=0.0, batch_first=True, norm_first=True)
        self.ln = nn.LayerNorm(c.d_model)
        self.out = nn.Linear(c.d_model, V)
        self.register_buffer("mask", torch.triu(torch.full((T, T), float("-inf")), 1))

    def forward(self, x):
        h = self.tok(x) + self.pos(torch.arange(x.shape[1]))
        return self.out(self.ln(self.block(h, src_mask=self.mask)))


follow = torch.randint(0, V, (V, 2))


def sentences(n):
    s = [torch.randint(0, V, (n,))]
    for _ in range(T):
        s.append(follow[s[-1], (torch.rand(n) < 0.2).long()])
    return torch.stack(s, 1)


cfg = Config()
lm = LM(cfg)
opt = torch.optim.SGD(lm.parameters(), lr=cfg.lr)
for step in range(1, cfg.steps + 1):
    s = sentences(cfg.batch)
    loss = F.cross_entropy(lm(s[:, :-1]).reshape(-1, V), s[:, 1:].reshape(-1))
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(lm.parameters(), cfg.clip)
    opt.step()
    if step % cfg.log_every == 0:
        print(f"| step {step:4d} | loss {loss.item():5.3f} | ppl {loss.exp().item():7.2f}")
