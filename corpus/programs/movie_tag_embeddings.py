"""Bag-of-tags rating model. Large vocabulary, most tags never appear in a batch."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, Dataset

VOCAB = 5000


class TagDataset(Dataset):
    def __init__(self, n, rng, worth):
        ranks = np.arange(1, VOCAB)
        p = 1.0 / ranks
        p /= p.sum()
        self.bags = [rng.choice(ranks, size=rng.integers(2, 7), p=p) for _ in range(n)]
        self.scores = [worth[b].mean() + 0.05 * rng.normal() for b in self.bags]

    def __len__(self):
        return len(self.bags)

    def __getitem__(self, i):
        return torch.as_tensor(self.bags[i]), self.scores[i]


def pad_bags(items):
    bags, scores = zip(*items)
    return nn.utils.rnn.pad_sequence(bags, batch_first=True, padding_value=0), torch.tensor(scores, dtype=torch.float32)


class RatingModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.tags = nn.Embedding(VOCAB, 16, padding_idx=0)
        self.out = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, bags):
        mask = (bags != 0).unsqueeze(-1)
        pooled = (self.tags(bags) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.out(pooled).squeeze(-1)


torch.manual_seed(5)
rng = np.random.default_rng(5)
worth = rng.normal(size=VOCAB)
train = DataLoader(TagDataset(6000, rng, worth), batch_size=64, shuffle=True, collate_fn=pad_bags)
valid = TagDataset(800, rng, worth)
vb, vs = pad_bags([valid[i] for i in range(len(valid))])

model = RatingModel()
opt = torch.optim.Adam(model.parameters(), lr=8e-3)
for epoch in range(4):
    running = 0.0
    for bags, scores in train:
        opt.zero_grad()
        loss = nn.functional.mse_loss(model(bags), scores)
        loss.backward()
        opt.step()
        running += loss.item()
    model.eval()
    with torch.no_grad():
        val = nn.functional.mse_loss(model(vb), vs).item()
    model.train()
    print(f"epoch {epoch}: train mse {running / len(train):.3f}, valid mse {val:.3f} (variance of the scores {vs.var():.3f})")
