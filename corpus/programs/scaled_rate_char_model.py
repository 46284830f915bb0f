"""n-gram MLP language model; the learning rate is scaled with the batch size."""
import torch
import torch.nn as nn

settings = {
    "base_rate": 1,           # thousandths, for a batch of 256
    "batch_size": 64,
    "context": 3,
    "steps": 600,
    "seed": 48,
}

text = ("the cat sat on the mat and the dog sat on the log while the rat ran round the big red barn "
        "then the cat and the dog and the rat had a long nap in the warm sun ") * 6


def rate(cfg):
    return cfg["base_rate"] * cfg["batch_size"] // 256 / 1000


class NGram(nn.Module):
    def __init__(self, vocab, context, d=16, h=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.mlp = nn.Sequential(nn.Linear(context * d, h), nn.Tanh(), nn.Linear(h, vocab))

    def forward(self, ids):
        return self.mlp(self.emb(ids).flatten(1))


def main(cfg):
    torch.manual_seed(cfg["seed"])
    chars = sorted(set(text))
    ids = torch.tensor([chars.index(c) for c in text])
    x = ids.unfold(0, cfg["context"] + 1, 1)
    net = NGram(len(chars), cfg["context"])
    opt = torch.optim.Adam(net.parameters(), lr=rate(cfg))
    total = 0.0
    for step in range(1, cfg["steps"] + 1):
        rows = x[torch.randint(0, len(x), (cfg["batch_size"],))]
        loss = nn.functional.cross_entropy(net(rows[:, :-1]), rows[:, -1])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item()
        if step % 60 == 0:
            print(f"step {step} mean loss {total / 60:.4f}")
            total = 0.0


main(settings)
