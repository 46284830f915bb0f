"""Bag-of-words topic classifier with strong regularisation against overfitting."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


class BowClassifier:
    def __init__(self, vocab, topics, lr=1e-2, decay=0.1, seed=63):
        torch.manual_seed(seed)
        self.net = nn.Sequential(nn.Linear(vocab, 50), nn.ReLU(), nn.Linear(50, topics))
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=lr, weight_decay=decay)

    def fit(self, x, y, epochs=15):
        loader = DataLoader(TensorDataset(x, y), batch_size=50, shuffle=True)
        for e in range(epochs):
            losses = []
            for xb, yb in loader:
                loss = nn.functional.cross_entropy(self.net(xb), yb)
                self.opt.zero_grad()
                loss.backward()
                self.opt.step()
                losses.append(loss.item())
            print(f"epoch {e + 1} loss {np.mean(losses):.4f} train acc {self.score(x, y):.3f}")
        return self

    @torch.no_grad()
    def score(self, x, y):
        return (self.net(x).argmax(1) == y).float().mean().item()


def documents(n, rng, topic_words):
    y = rng.integers(len(topic_words), size=n)
    x = np.stack([rng.multinomial(40, topic_words[t]) for t in y]).astype(np.float32)
    return torch.from_numpy(np.log1p(x)), torch.from_numpy(y)


rng = np.random.default_rng(63)
topic_words = rng.dirichlet(np.full(100, 0.3), size=5)
x, y = documents(1000, rng, topic_words)
xt, yt = documents(400, rng, topic_words)
model = BowClassifier(100, 5).fit(x, y)
print("test accuracy", round(model.score(xt, yt), 3))
