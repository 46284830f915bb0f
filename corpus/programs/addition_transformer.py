"""Sum of two marked tokens modulo 7, pre-norm transformer with scaled_dot_product_attention."""
import torch
import torch.nn as nn
import torch.nn.functional as F

V, T, D, HEADS, CLASSES = 7, 8, 32, 4, 7


class SelfAttention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.dropout)
        return self.proj(y.transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, dim, heads, dropout=0.6):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads, dropout)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.n1(x))
        return x + self.ff(self.n2(x))


class Adder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok = nn.Embedding(V, D)
        self.mark = nn.Embedding(2, D)
        self.pos = nn.Parameter(0.1 * torch.randn(T, D))
        self.layers = nn.Sequential(Layer(D, HEADS), Layer(D, HEADS))
        self.head = nn.Linear(D, CLASSES)

    def forward(self, tok, mark):
        h = self.layers(self.tok(tok) + self.mark(mark) + self.pos)
        return self.head(h.mean(1))


def batch(n):
    tok = torch.randint(0, V, (n, T))
    where = torch.rand(n, T).topk(2, dim=1).indices
    mark = torch.zeros(n, T, dtype=torch.long).scatter_(1, where, 1)
    return tok, mark, (tok * mark).sum(1) % CLASSES


torch.manual_seed(26)
model = Adder()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
vt, vm, vy = batch(800)
for step in range(360):
    model.train()
    t, m, y = batch(64)
    loss = F.cross_entropy(model(t, m), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 40 == 39:
        model.eval()
        with torch.no_grad():
            out = model(vt, vm)
        print(f"step {step + 1} loss {loss.item():.3f} val {F.cross_entropy(out, vy).item():.3f} "
              f"acc {(out.argmax(1) == vy).float().mean().item():.3f}")
