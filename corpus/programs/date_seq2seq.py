"""Sequence to sequence: read digits, write them in reverse. Decoder returns log-probabilities."""
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(73)
V, L, H = 11, 6, 48          # 10 digits and the start symbol


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, H)
        self.gru = nn.GRU(H, H, batch_first=True)

    def forward(self, x):
        return self.gru(self.emb(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(V, H)
        self.cell = nn.GRUCell(2 * H, H)
        self.out = nn.Linear(2 * H, V)

    def forward(self, token, hidden, memory):
        e = self.emb(token)
        weights = torch.softmax(torch.bmm(memory, hidden.unsqueeze(2)), dim=1)
        context = (weights * memory).sum(1)
        hidden = self.cell(torch.cat([e, context], 1), hidden)
        return F.log_softmax(self.out(torch.cat([hidden, context], 1)), dim=1), hidden


enc, dec = Encoder(), Decoder()
params = list(enc.parameters()) + list(dec.parameters())
opt = torch.optim.Adam(params, lr=4e-3)
criterion = nn.CrossEntropyLoss()
for step in range(1, 401):
    src = torch.randint(0, 10, (48, L))
    trg = src.flip(1)
    memory, h = enc(src)
    h, token, loss = h[0], torch.full((48,), 10), 0
    for t in range(L):
        logp, h = dec(token, h, memory)
        loss = loss + criterion(logp, trg[:, t])
        token = trg[:, t]
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(params, 1.0)
    opt.step()
    if step % 50 == 0:
        print(f"step {step} loss per digit {loss.item() / L:.4f}")
