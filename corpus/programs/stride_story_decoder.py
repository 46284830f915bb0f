import math
import torch
import torch.nn as nn
import torch.nn.functional as F

# Counting stories: x, x+s, x+2s, ... modulo 12, where the stride changes now and then.
torch.manual_seed(44)
V, T, D, H = 12, 12, 48, 4


def stories(n):
    cur = torch.randint(V, (n,))
    stride = torch.randint(1, V, (n,))
    cols = []
    for _ in range(T + 1):
        cols.append(cur)
        jump = torch.rand(n) < 0.25
        stride = torch.where(jump, torch.randint(1, V, (n,)), stride)
        cur = (cur + stride) % V
    return torch.stack(cols, 1)


class MultiHead(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(D, D, bias=False) for _ in range(3))
        self.wo = nn.Linear(D, D)
        self.register_buffer("causal", torch.tril(torch.ones(T, T)).bool())

    def split(self, x):
        return x.view(x.size(0), x.size(1), H, D // H).transpose(1, 2)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        score = q @ k.transpose(2, 3) / math.sqrt(D // H)
        score = score.masked_fill(~self.causal[:t, :t], -1e9)
        z = F.softmax(score, -1) @ v
        return self.wo(z.transpose(1, 2).reshape(b, t, D))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.att, self.n1, self.n2 = MultiHead(), nn.LayerNorm(D), nn.LayerNorm(D)
        self.ff = nn.Sequential(nn.Linear(D, 96), nn.ReLU(), nn.Linear(96, D))

    def forward(self, x):
        x = self.n1(x + self.att(x))
        return self.n2(x + self.ff(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.pos = nn.Embedding(V, D), nn.Parameter(0.1 * torch.randn(T, D))
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.cls = nn.Linear(D, V)

    def forward(self, ids):
        h = self.emb(ids) + self.pos[: ids.size(1)]
        for layer in self.layers:
            h = layer(h)
        return self.cls(h)


net = Decoder()
opt = torch.optim.Adam(net.parameters(), 2e-3, betas=(0.9, 0.98))
for it in range(1, 351):
    batch = stories(32)
    loss = F.cross_entropy(net(batch[:, :-1]).reshape(-1, V), batch[:, 1:].reshape(-1))
    opt.zero_grad(); loss.backward(); opt.step()
    if it % 50 == 0:
        print(it, f"loss {loss.item():.3f}")
net.eval()
with torch.no_grad():
    test = stories(400)
    hits = [(net(test[:, :t])[:, -1].argmax(-1) == test[:, t]).float().mean().item() for t in range(4, T)]
print("accuracy when written one by one:", round(sum(hits) / len(hits), 3))
