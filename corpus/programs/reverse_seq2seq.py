"""Reverse short digit strings with an encoder-decoder GRU. The decoder returns log-probabilities."""
import torch
from torch import nn

torch.manual_seed(43)
VOCAB, SOS, LENGTH = 11, 10, 6


class Encoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)

    def forward(self, ids):
        return self.gru(self.embedding(ids))


class AttnDecoder(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, hidden)
        self.gru = nn.GRU(hidden, hidden, batch_first=True)
        self.out = nn.Linear(2 * hidden, VOCAB)

    def forward(self, ids, memory, state):
        h, state = self.gru(self.embedding(ids), state)
        weights = torch.softmax(h @ memory.transpose(1, 2), dim=-1)
        context = weights @ memory
        return torch.log_softmax(self.out(torch.cat([h, context], -1)), dim=-1), state


enc, dec = Encoder(48), AttnDecoder(48)
opt = torch.optim.Adam([*enc.parameters(), *dec.parameters()], lr=5e-3)
criterion = nn.CrossEntropyLoss()
for it in range(450):
    src = torch.randint(0, 10, (64, LENGTH))
    tgt = src.flip(1)
    inp = torch.cat([torch.full((64, 1), SOS), tgt[:, :-1]], 1)
    memory, state = enc(src)
    logp, _ = dec(inp, memory, state)
    loss = criterion(logp.reshape(-1, VOCAB), tgt.reshape(-1))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if it % 50 == 49:
        print(f"iteration {it + 1}: loss {loss.item():.4f}")

with torch.no_grad():
    src = torch.randint(0, 10, (300, LENGTH))
    memory, state = enc(src)
    tok, outs = torch.full((300, 1), SOS), []
    for _ in range(LENGTH):
        logp, state = dec(tok, memory, state)
        tok = logp[:, -1].argmax(-1, keepdim=True)
        outs.append(tok)
print("exact reversals:", (torch.cat(outs, 1) == src.flip(1)).all(1).float().mean().item())
