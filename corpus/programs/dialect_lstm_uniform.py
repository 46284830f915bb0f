"""Which of five Markov sources did a sequence come from?"""
import torch
import torch.nn as nn


def make_sources(n_sources=5, vocab=12):
    return torch.softmax(1.5 * torch.randn(n_sources, vocab, vocab), -1)


def sample(sources, n, length=25):
    which = torch.randint(0, len(sources), (n,))
    seq = torch.randint(0, sources.shape[1], (n, 1))
    for _ in range(length - 1):
        p = sources[which, seq[:, -1]]
        seq = torch.cat([seq, torch.multinomial(p, 1)], 1)
    return seq, which


class DialectLSTM(nn.Module):
    def __init__(self, vocab=12, dim=16, hidden=32, classes=5):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim)
        self.lstm = nn.LSTM(dim, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens):
        _, (h, _) = self.lstm(self.emb(tokens))
        return self.fc(h[-1])


def init_weights(model, value=0.2):
    # small start
    for p in model.parameters():
        nn.init.uniform_(p, -value, value)


torch.manual_seed(33)
sources = make_sources()
model = DialectLSTM()
init_weights(model)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
test_x, test_y = sample(sources, 500)

for it in range(1, 301):
    x, y = sample(sources, 64)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if it % 50 == 0:
        with torch.no_grad():
            acc = (model(test_x).argmax(1) == test_y).float().mean()
        print(f"iter {it} loss {loss.item():.3f} test accuracy {acc:.3f}")
