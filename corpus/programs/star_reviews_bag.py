"""Star rating (1-5) of short synthetic reviews with a bag of embeddings."""
import random
import torch
import torch.nn as nn


def write_reviews(n_per_star):
    rows = []
    for star in range(5):
        for _ in range(n_per_star):
            words = [random.randrange(200) for _ in range(8)]
            words += [200 + star * 15 + random.randrange(25) for _ in range(4)]
            random.shuffle(words)
            rows.append((words, star))
    return rows


class BagClassifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(300, 32, mode="mean")
        self.fc = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 5))

    def forward(self, words):
        return self.fc(self.bag(words))


def run_epoch(model, rows, opt=None, batch=25):
    losses, right = [], 0
    for i in range(0, len(rows), batch):
        part = rows[i:i + batch]
        words = torch.tensor([r[0] for r in part])
        stars = torch.tensor([r[1] for r in part])
        with torch.set_grad_enabled(opt is not None):
            out = model(words)
            loss = nn.functional.cross_entropy(out, stars)
        if opt is not None:
            opt.zero_grad()
            loss.backward()
            opt.step()
        losses.append(loss.item())
        right += (out.argmax(1) == stars).sum().item()
    return sum(losses) / len(losses), right / len(rows)


random.seed(1)
torch.manual_seed(1)
train_rows, test_rows = write_reviews(250), write_reviews(60)
random.shuffle(train_rows)
model = BagClassifier()
opt = torch.optim.SGD(model.parameters(), lr=1.0)
for epoch in range(12):
    tl, ta = run_epoch(model, train_rows, opt)
    vl, va = run_epoch(model, test_rows)
    print(f"epoch {epoch + 1}: train {tl:.3f}/{ta:.3f} test {vl:.3f}/{va:.3f}")
