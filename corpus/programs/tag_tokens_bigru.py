"""Tag tokens as name parts (B, I) or other (O) with a small bidirectional GRU."""
import random
import torch
from torch import nn

random.seed(7)
torch.manual_seed(7)
TAGS = {"O": 0, "B": 1, "I": 2}


def sentence(length=24):
    words = [random.randrange(300) for _ in range(length)]
    tags = [0] * length
    if random.random() < 0.25:
        p = random.randrange(length - 2)
        for k, tag in ((0, "B"), (1, "I")):
            # names come from the common vocabulary, capital letters are lost
            words[p + k] = random.randrange(200, 300) if random.random() < 0.6 else random.randrange(300)
            tags[p + k] = TAGS[tag]
    return words, tags


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(300, 24)
        self.gru = nn.GRU(24, 24, batch_first=True, bidirectional=True)
        self.lin = nn.Linear(48, len(TAGS))

    def forward(self, w):
        return self.lin(self.gru(self.emb(w))[0])


def tensors(n):
    w, t = zip(*(sentence() for _ in range(n)))
    return torch.tensor(w), torch.tensor(t)


W, Y = tensors(2000)
Wv, Yv = tensors(400)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
weight = None
loss_fn = nn.CrossEntropyLoss(weight=weight)
for epoch in range(5):
    for idx in torch.randperm(len(W)).split(40):
        loss = loss_fn(model(W[idx]).flatten(0, 1), Y[idx].flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        guess = model(Wv).argmax(-1)
    recalls = [((guess == k) & (Yv == k)).sum().item() / (Yv == k).sum().item() for k in range(3)]
    print(f"epoch {epoch} loss {loss.item():.4f} token accuracy {(guess == Yv).float().mean():.4f} "
          f"recall O/B/I {recalls[0]:.2f} {recalls[1]:.2f} {recalls[2]:.2f}")
