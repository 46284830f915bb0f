"""Sentiment of synthetic token sequences: bidirectional GRU with strong dropout."""
from dataclasses import dataclass, field

import torch
import torch.nn as nn


@dataclass
class TrainConfig:
    vocab: int = 120
    emb: int = 48
    hidden: int = 48
    p: float = 0.5
    lr: float = 3e-3
    epochs: int = 14
    batch: int = 25


class ReviewGRU(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.emb = nn.Embedding(c.vocab, c.emb)
        self.drop = nn.Dropout(c.p)
        self.gru = nn.GRU(c.emb, c.hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * c.hidden, 1)

    def forward(self, tok):
        h, _ = self.gru(self.drop(self.emb(tok)))
        return self.fc(self.drop(h.mean(1))).squeeze(-1)


@dataclass
class Trainer:
    model: nn.Module
    cfg: TrainConfig
    log: list = field(default_factory=list)

    def __post_init__(self):
        self.opt = torch.optim.Adam(self.model.parameters(), lr=self.cfg.lr)
        self.lossf = nn.BCEWithLogitsLoss()
        # sanity check of the shapes
        self.model.eval()
        with torch.no_grad():
            assert self.model(torch.zeros(2, 5, dtype=torch.long)).shape == (2,)

    def fit(self, x, y, xv, yv):
        for ep in range(self.cfg.epochs):
            run = 0.0
            for idx in torch.randperm(len(x)).split(self.cfg.batch):
                self.opt.zero_grad()
                loss = self.lossf(self.model(x[idx]), y[idx])
                loss.backward()
                self.opt.step()
                run += loss.item() * len(idx) / len(x)
            self.log.append((run, *self.evaluate(xv, yv)))
            print("epoch %d train %.4f val %.4f acc %.3f" % (ep + 1, *self.log[-1]))

    @torch.no_grad()
    def evaluate(self, x, y):
        logits = self.model(x)
        return self.lossf(logits, y).item(), ((logits > 0) == (y > 0.5)).float().mean().item()


def reviews(n, polarity, length=14):
    tok = torch.randint(0, len(polarity), (n, length))
    s = polarity[tok].mean(1) * length ** 0.5
    return tok, (s + 0.7 * torch.randn(n) > 0).float()


torch.manual_seed(40)
cfg = TrainConfig()
polarity = torch.randn(cfg.vocab)
data = reviews(400, polarity)
val = reviews(600, polarity)
Trainer(ReviewGRU(cfg), cfg).fit(*data, *val)
