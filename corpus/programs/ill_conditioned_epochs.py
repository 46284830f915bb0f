"""Noisy ill-conditioned regression in the style 'one call of train_epoch per epoch'."""
import torch
import torch.nn as nn


def train_epoch(model, optimizer, batches):
    total = 0.0
    for x, y in batches:
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(batches)


def make_batches(n_batches, scales, truth, size=64):
    out = []
    for _ in range(n_batches):
        x = torch.randn(size, len(scales)) * scales
        out.append((x, x @ truth + 0.05 * torch.randn(size, 1)))
    return out


torch.manual_seed(29)
scales = torch.logspace(-1.3, 0, 12)
truth = torch.randn(12, 1) / scales.unsqueeze(1)
model = nn.Linear(12, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.98)
held_out = make_batches(10, scales, truth)
for epoch in range(1, 401):
    loss = train_epoch(model, optimizer, make_batches(4, scales, truth))
    if epoch % 40 == 0:
        with torch.no_grad():
            val = sum(nn.functional.mse_loss(model(x), y).item() for x, y in held_out) / 10
        print(f"epoch {epoch} train {loss:.4f} held out {val:.4f}")
