"""Word-level LSTM language model on a small generated grammar, output matrix tied to the embedding."""
import random

import torch
from torch import nn

SUBJ = ["the cat", "a dog", "the old man", "my sister", "a small bird"]
VERB = {"the cat": ["sleeps", "eats"], "a dog": ["barks", "eats"], "the old man": ["sings", "reads"], "my sister": ["reads", "sings"], "a small bird": ["sings", "flies"]}
PLACE = ["in the garden", "near the river", "at home"]


def sentence():
    s = random.choice(SUBJ)
    return f"{s} {random.choice(VERB[s])} {random.choice(PLACE)} .".split()


class TiedLM(nn.Module):
    def __init__(self, vocab, d=48):
        super().__init__()
        self.embed = nn.Embedding(vocab, d)
        nn.init.normal_(self.embed.weight, std=0.1)
        self.rnn = nn.LSTM(d, d, batch_first=True)
        self.out = nn.Linear(d, vocab)
        self.out.weight = self.embed.weight

    def forward(self, ids, state=None):
        h, state = self.rnn(self.embed(ids), state)
        return self.out(h), state


def main():
    random.seed(12)
    torch.manual_seed(12)
    words = [w for _ in range(2500) for w in sentence()]
    vocab = sorted(set(words))
    index = {w: i for i, w in enumerate(vocab)}
    ids = torch.tensor([index[w] for w in words])

    model = TiedLM(len(vocab))
    print(len(model.state_dict()), "entries,", sum(1 for _ in model.parameters()), "parameters")
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    B, T = 16, 16
    for step in range(300):
        start = torch.randint(0, len(ids) - T - 1, (B,))
        x = torch.stack([ids[s : s + T] for s in start])
        y = torch.stack([ids[s + 1 : s + T + 1] for s in start])
        logits, _ = model(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 50 == 0 or step == 299:
            print(f"step {step} perplexity {loss.exp().item():.2f}")

    cur, state, text = torch.tensor([[index["."]]]), None, []
    with torch.no_grad():
        for _ in range(18):
            logits, state = model(cur, state)
            cur = torch.multinomial(logits[0, -1].softmax(-1), 1)[None]
            text.append(vocab[cur.item()])
    print(" ".join(text))


main()
