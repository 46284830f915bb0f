"""Which token follows the zero in a sequence?"""
import torch
import torch.nn as nn


class OrderGRU(nn.Module):
    def __init__(self, vocab=8, emb=16, hid=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb)
        self.rnn = nn.GRU(emb, hid, batch_first=True)
        self.fc = nn.Linear(hid, vocab)

    def forward(self, x):
        return self.fc(self.rnn(self.emb(x))[0][:, -1])


def dataset(n, length=10, vocab=8):
    """Target: the token that follows the zero."""
    x = torch.randint(1, vocab, (n, length))
    pos = torch.randint(0, length - 1, (n,))
    x[torch.arange(n), pos] = 0
    return x, x[torch.arange(n), pos + 1]


def run_epoch(model, opt, x, y, batch=40):
    model.train()
    opt.zero_grad()
    total, n = 0.0, 0
    for idx in torch.randperm(len(x)).split(batch):
        loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
        loss.backward()
        opt.step()
        total += loss.item()
        n += 1
    return total / n


torch.manual_seed(36)
x, y = dataset(2000)
xv, yv = dataset(500)
model = OrderGRU()
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
for epoch in range(1, 9):
    tr = run_epoch(model, opt, x, y)
    model.eval()
    with torch.no_grad():
        acc = (model(xv).argmax(1) == yv).float().mean().item()
    print(f"epoch {epoch} loss {tr:.4f} val acc {acc:.3f}")
