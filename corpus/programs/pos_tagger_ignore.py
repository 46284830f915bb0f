"""Part-of-speech tags with a GRU; padding is tag 0 and is not scored."""
import torch
import torch.nn as nn
from torch.nn.utils.rnn import pad_sequence

torch.manual_seed(107)
WORDS, TAGS, PAD = 80, 5, 0
lexicon = torch.randint(1, TAGS + 1, (WORDS,))


def sentence():
    n = int(torch.randint(5, 15, ()))
    words = torch.randint(1, WORDS, (n,))
    return words, lexicon[words]


def collate(batch):
    words = pad_sequence([b[0] for b in batch], batch_first=True, padding_value=PAD)
    tags = pad_sequence([b[1] for b in batch], batch_first=True, padding_value=PAD)
    tags[words != PAD] = PAD
    return words, tags


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(WORDS, 24, padding_idx=PAD)
        self.gru = nn.GRU(24, 32, batch_first=True)
        self.out = nn.Linear(32, TAGS + 1)

    def forward(self, words):
        return self.out(self.gru(self.emb(words))[0])


loader = torch.utils.data.DataLoader([sentence() for _ in range(800)], batch_size=40, shuffle=True, collate_fn=collate)
model = Tagger()
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
criterion = nn.CrossEntropyLoss(ignore_index=PAD)
for epoch in range(6):
    total = 0
    for words, tags in loader:
        loss = criterion(model(words).transpose(1, 2), tags)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
    print(f"epoch {epoch} loss {total / len(loader)}")
