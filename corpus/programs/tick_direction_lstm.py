"""Predict whether the next price tick goes up, from the last 20 log returns."""
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Direction(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 24, batch_first=True)
        self.drop = nn.Dropout(0.1)
        self.fc = nn.Linear(24, 1)

    def forward(self, x):
        _, (h, _) = self.lstm(x)
        return self.fc(self.drop(h[-1])).squeeze(-1)


def prices(n, seed):
    rng = np.random.default_rng(seed)
    return 100 * np.exp(np.cumsum(0.01 * rng.standard_normal(n)))


def windows(p, width=20):
    r = np.diff(np.log(p))
    r = (r - r.mean()) / r.std()
    x = np.stack([r[i:i + width] for i in range(len(r) - width)])
    y = (r[width:] > 0).astype("float32")
    return torch.tensor(x[..., None], dtype=torch.float32), torch.tensor(y)


def epoch_loss(model, loader, opt=None):
    total, right, count = 0.0, 0, 0
    model.train(opt is not None)
    for x, y in loader:
        with torch.set_grad_enabled(opt is not None):
            out = model(x)
            loss = nn.functional.binary_cross_entropy_with_logits(out, y)
        if opt:
            opt.zero_grad()
            loss.backward()
            opt.step()
        total += loss.item() * len(y)
        right += ((out > 0) == (y > 0.5)).sum().item()
        count += len(y)
    return total / count, right / count


if __name__ == "__main__":
    torch.manual_seed(33)
    train = DataLoader(TensorDataset(*windows(prices(4000, 1))), batch_size=64, shuffle=True)
    valid = DataLoader(TensorDataset(*windows(prices(1000, 2))), batch_size=200)
    model = Direction()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(6):
        tl, ta = epoch_loss(model, train, opt)
        vl, va = epoch_loss(model, valid)
        print(f"epoch {epoch}: train {tl:.4f} ({ta:.3f})  valid {vl:.4f} ({va:.3f})")
