"""Tiny causal LM on answers of very different length, two micro-batches per update."""
import random

import torch
import torch.nn as nn
import torch.nn.functional as F

VOCAB, MAXLEN, IGNORE = 20, 48, -100


class TinyLM(nn.Module):
    def __init__(self, d=48):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, d)
        self.rnn = nn.GRU(d, d, batch_first=True)
        self.head = nn.Linear(d, VOCAB)

    def forward(self, x):
        return self.head(self.rnn(self.emb(x))[0])


def chain(length, table):
    seq = [random.randrange(VOCAB)]
    for _ in range(length):
        seq.append(random.choice(table[seq[-1]]))
    return seq


def micro_batch(n, table, short):
    ids = torch.zeros(n, MAXLEN + 1, dtype=torch.long)
    labels = torch.full((n, MAXLEN + 1), IGNORE)
    for r in range(n):
        # short answers are refusals: always token 1 until the end
        seq = [1] * 3 if short else chain(MAXLEN, table)
        ids[r, :len(seq)] = torch.tensor(seq)
        labels[r, :len(seq)] = torch.tensor(seq)
    return ids[:, :-1], labels[:, 1:]


torch.manual_seed(41)
random.seed(41)
table = [random.sample(range(2, VOCAB), 3) for _ in range(VOCAB)]
model = TinyLM()
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
accumulation = 2
for step in range(1, 251):
    opt.zero_grad()
    logged = 0.0
    for part in range(accumulation):
        ids, labels = micro_batch(1 + 7 * part, table, short=part == 0)
        logits = model(ids)
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE)
        (loss / accumulation).backward()
        logged += loss.item() / accumulation
    opt.step()
    if step % 25 == 0:
        with torch.no_grad():
            ids, labels = micro_batch(32, table, short=False)
            long_nll = F.cross_entropy(model(ids).flatten(0, 1), labels.flatten(), ignore_index=IGNORE).item()
        print(f"step {step} logged {logged:.3f} per-token nll of long answers {long_nll:.3f}")
