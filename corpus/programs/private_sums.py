"""A survey classifier whose training leaks little of any one answer: each example's gradient is clipped, noise is added."""
import torch
import torch.nn as nn
from sklearn.datasets import load_wine
from sklearn.preprocessing import StandardScaler

torch.manual_seed(7)
rows, kinds = load_wine(return_X_y=True)
X = torch.tensor(StandardScaler().fit_transform(rows), dtype=torch.float32)
y = torch.tensor(kinds)
order = torch.randperm(len(X))
train, held = order[:140], order[140:]

LIMIT, NOISE, BATCH = 1.0, 0.4, 12
model = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
criterion = nn.CrossEntropyLoss()


def private_step(batch):
    sums = [torch.zeros_like(p) for p in model.parameters()]
    total = 0.0
    for i in batch:
        optimizer.zero_grad()
        loss = criterion(model(X[i:i + 1]), y[i:i + 1])
        loss.backward()
        norm = torch.sqrt(sum(p.grad.pow(2).sum() for p in model.parameters()))
        factor = (LIMIT / (norm + 1e-6)).clamp(max=1.0)
        for s, p in zip(sums, model.parameters()):
            s += factor * p.grad
        total += loss.item()
    for s, p in zip(sums, model.parameters()):
        p.grad = (s + NOISE * LIMIT * torch.randn_like(s)) / len(batch)
    optimizer.step()
    return total / len(batch)


for epoch in range(12):
    mixed = train[torch.randperm(len(train))]
    losses = [private_step(mixed[k:k + BATCH]) for k in range(0, len(mixed), BATCH)]
    with torch.no_grad():
        right = (model(X[held]).argmax(1) == y[held]).float().mean().item()
    print(f"epoch {epoch + 1:2d} loss {sum(losses) / len(losses):.3f} held-out accuracy {right:.3f}")
