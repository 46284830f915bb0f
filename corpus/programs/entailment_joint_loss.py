"""Three-way relation of two token bags; the loss object owns the classifier (u, v, |u-v|)."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class BagEncoder(nn.Module):
    def __init__(self, vocab=60, d=32):
        super().__init__()
        self.emb = nn.EmbeddingBag(vocab, d, mode="mean")
        self.mlp = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, d))

    def forward(self, ids):
        return self.mlp(self.emb(ids))


class RelationLoss(nn.Module):
    def __init__(self, encoder, d=32, classes=3):
        super().__init__()
        self.encode = encoder
        self.classifier = nn.Sequential(nn.LayerNorm(3 * d), nn.Linear(3 * d, classes))
        nn.init.normal_(self.classifier[1].weight, std=0.01)

    def scores(self, a, b):
        u, v = self.encode(a), self.encode(b)
        return self.classifier(torch.cat([u, v, (u - v).abs()], 1))

    def forward(self, a, b, y):
        return F.cross_entropy(self.scores(a, b), y)


class SimpleTrainer:
    def __init__(self, model, loss, lr=2e-3):
        self.model, self.loss = model, loss
        self.opt = torch.optim.AdamW(loss.parameters(), lr=lr)

    def train(self, make_batch, steps, val):
        for s in range(1, steps + 1):
            self.loss.train()
            loss = self.loss(*make_batch(64))
            self.loss.zero_grad()
            loss.backward()
            self.opt.step()
            if s % 80 == 0:
                self.loss.eval()
                with torch.no_grad():
                    acc = (self.loss.scores(*val[:2]).argmax(1) == val[2]).float().mean().item()
                print(f"step {s} loss {loss.item():.4f} val acc {acc:.3f}")


def pairs(n, topics=5, per=12, length=8):
    ta = torch.randint(0, topics, (n,))
    y = torch.randint(0, 3, (n,))
    tb = (ta + y) % topics
    draw = lambda t: t[:, None] * per + torch.randint(0, per, (n, length))
    return draw(ta), draw(tb), y


torch.manual_seed(27)
encoder = BagEncoder()
SimpleTrainer(encoder, RelationLoss(encoder)).train(pairs, 800, pairs(500))
