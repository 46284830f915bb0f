"""Character model of the descriptions that come with scikit-learn's data sets."""

import math

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from torch import nn

torch.manual_seed(11)

text = "\n".join(load().DESCR for load in (load_digits, load_wine, load_diabetes, load_breast_cancer)).lower()
chars = sorted(set(text))
stoi = {c: i for i, c in enumerate(chars)}
data = torch.tensor([stoi[c] for c in text])

batch_size, seq_len, clip = 32, 32, 0.01
n = len(data) // batch_size
data = data[: n * batch_size].view(batch_size, n)


class CharLSTM(nn.Module):
    def __init__(self, vocab, emb=32, hidden=96):
        super().__init__()
        self.embed = nn.Embedding(vocab, emb)
        self.lstm = nn.LSTM(emb, hidden, batch_first=True)
        self.decoder = nn.Linear(hidden, vocab)

    def forward(self, x, state=None):
        out, state = self.lstm(self.embed(x), state)
        return self.decoder(out), state


model = CharLSTM(len(chars))
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
criterion = nn.CrossEntropyLoss()
print(f"{len(text)} characters, {len(chars)} different, {n // seq_len} batches an epoch")

step = 0
for epoch in range(20):
    state = None
    losses = []
    for start in range(0, n - seq_len - 1, seq_len):
        x = data[:, start : start + seq_len]
        y = data[:, start + 1 : start + seq_len + 1]
        if state is not None:
            state = tuple(s.detach() for s in state)
        logits, state = model(x, state)
        loss = criterion(logits.reshape(-1, len(chars)), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.item())
        step += 1
    mean = sum(losses) / len(losses)
    print(f"epoch {epoch + 1:2d} step {step:4d} loss {mean:.3f} perplexity {math.exp(mean):.1f}")
