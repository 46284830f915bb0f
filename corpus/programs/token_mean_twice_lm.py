"""Next-token model over a fixed window; a mean cross-entropy per batch and plain SGD."""
import torch
import torch.nn as nn

torch.manual_seed(86)
V, W = 20, 4


class WindowLM(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, 16)
        self.mlp = nn.Sequential(nn.Linear(16 * W, 64), nn.ReLU(), nn.Linear(64, V))

    def forward(self, ctx):
        return self.mlp(self.emb(ctx).flatten(1))


def stream(n):
    rule = torch.randint(0, V, (V, V))
    s = [0, 1]
    for _ in range(n):
        s.append(int(rule[s[-2], s[-1]]) if torch.rand(()) < 0.9 else int(torch.randint(V, ())))
    return torch.tensor(s)


seq = stream(6000)
ctx = seq.unfold(0, W + 1, 1)
loss_fn = nn.CrossEntropyLoss()
lm = WindowLM()
opt = torch.optim.SGD(lm.parameters(), lr=0.3, momentum=0.9)
batch_size = 128
for epoch in range(12):
    total = 0.0
    for part in ctx[torch.randperm(len(ctx))].split(batch_size):
        loss = loss_fn(lm(part[:, :W]), part[:, W]) / batch_size
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(part)
    with torch.no_grad():
        acc = (lm(ctx[:2000, :W]).argmax(1) == ctx[:2000, W]).float().mean()
    print(f"epoch {epoch} loss {total / len(ctx):.6f} accuracy {acc:.3f}")
