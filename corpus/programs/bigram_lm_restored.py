"""Small language model with shared input and output embeddings, warm-started from saved weights."""
import io

import torch
from torch import nn


class SharedLM(nn.Module):
    def __init__(self, vocab, d=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        self.mix = nn.GRU(d, d, batch_first=True)
        self.decoder = nn.Linear(d, vocab, bias=False)
        self.decoder.weight = self.embed.weight  # share input and output embeddings
        nn.init.normal_(self.embed.weight, std=0.2)

    def forward(self, ids):
        h, _ = self.mix(self.embed(ids))
        return self.decoder(h)


def token_stream(vocab, n, table):
    ids = [0]
    for u in torch.rand(n).tolist():
        row = table[ids[-1]]
        ids.append(int(row[0] if u < 0.6 else row[1] if u < 0.9 else row[2]))
    return torch.tensor(ids)


def batches(ids, steps, n=24, t=12):
    for _ in range(steps):
        s = torch.randint(0, len(ids) - t - 1, (n,))
        yield torch.stack([ids[i : i + t] for i in s]), torch.stack([ids[i + 1 : i + t + 1] for i in s])


def train(model, ids, steps, lr):
    opt = torch.optim.Adam(model.parameters(), lr=lr)
    for k, (x, y) in enumerate(batches(ids, steps)):
        loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if k % 50 == 49:
            print(f"step {k + 1} loss {loss.item():.4f}")


def main():
    torch.manual_seed(337)
    V = 120
    ids = token_stream(V, 6000, torch.randint(0, V, (V, 3)))
    first = SharedLM(V)
    train(first, ids, 100, 5e-3)
    store = io.BytesIO()
    torch.save({k: v.clone() for k, v in first.state_dict().items()}, store)
    store.seek(0)

    model = SharedLM(V)
    model.load_state_dict(torch.load(store), assign=True)
    train(model, ids, 300, 5e-3)
    print(sum(p.numel() for p in model.parameters()), "parameters")


main()
