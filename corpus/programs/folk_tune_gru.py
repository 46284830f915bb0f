"""Melodies from a little grammar; a recurrent net learns to continue them."""
import random
import torch
from torch import nn

NOTES = "CDEFGAB-"
MOTIFS = ["CEG-", "DFA-", "EGB-", "GFED", "AGFE", "CDCD"]


class TuneModel(nn.Module):
    def __init__(self, n=len(NOTES), emb=16, hid=48):
        super().__init__()
        self.emb = nn.Embedding(n, emb)
        self.rnn = nn.GRU(emb, hid, batch_first=True, bidirectional=True)
        self.out = nn.Linear(2 * hid, n)

    def forward(self, x):
        return self.out(self.rnn(self.emb(x))[0])


def tune(motifs=8):
    s = "".join(random.choice(MOTIFS) for _ in range(motifs))
    return torch.tensor([NOTES.index(c) for c in s])


def train(model, tunes, updates=300):
    opt = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    smooth = None
    for u in range(updates):
        batch = torch.stack(random.sample(tunes, 32))
        logits = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:])
        opt.zero_grad()
        loss.backward()
        opt.step()
        smooth = loss.item() if smooth is None else 0.95 * smooth + 0.05 * loss.item()
        if (u + 1) % 50 == 0:
            print(f"update {u + 1}: {smooth:.3f} nats per note")


@torch.no_grad()
def continue_score(model, tunes):
    model.eval()
    x = torch.stack(tunes)
    losses = [nn.functional.cross_entropy(model(x[:, :t])[:, -1], x[:, t]).item() for t in range(8, 24)]
    return sum(losses) / len(losses)


if __name__ == "__main__":
    random.seed(2)
    torch.manual_seed(2)
    all_tunes = [tune() for _ in range(1200)]
    model = TuneModel()
    train(model, all_tunes[:1000])
    print(f"continuing unseen tunes: {continue_score(model, all_tunes[1000:]):.3f} nats per note")
