"""Small transformer classifier; first trained on task A, then fine-tuned on task B."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(80)


class Encoder(nn.Module):
    def __init__(self, vocab=16, d=32, length=12):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.pos = nn.Parameter(0.02 * torch.randn(length, d))
        layer = nn.TransformerEncoderLayer(d, 4, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.pool = nn.Linear(d, d)

    def forward(self, x):
        return torch.tanh(self.pool(self.body(self.emb(x) + self.pos).mean(1)))


def task_a(n):
    x = torch.randint(0, 16, (n, 12))
    return x, ((x == 3).sum(1) > (x == 5).sum(1)).long()


def task_b(n):
    x = torch.randint(0, 16, (n, 12))
    return x, ((x < 6).sum(1) > (x > 10).sum(1)).long()


def train(encoder, head, task, steps, lr, every):
    opt = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=lr, weight_decay=0.01)
    avg = 0.0
    for s in range(1, steps + 1):
        encoder.train()
        x, y = task(32)
        loss = F.cross_entropy(head(encoder(x)), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        avg += loss.item() / every
        if s % every == 0:
            encoder.eval()
            with torch.no_grad():
                xv, yv = task(500)
                acc = (head(encoder(xv)).argmax(1) == yv).float().mean().item()
            print(f"  step {s} loss {avg:.4f} acc {acc:.3f}")
            avg = 0.0


encoder = Encoder()
print("pre-training on A")
train(encoder, nn.Linear(32, 2), task_a, steps=150, lr=1e-3, every=75)
print("fine-tuning on B")
train(encoder, nn.Linear(32, 2), task_b, steps=350, lr=1e-3, every=50)
