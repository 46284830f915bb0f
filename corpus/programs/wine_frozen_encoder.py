import io

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Encoder(nn.Module):
    def __init__(self, d_in, d_code):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d_in, 64), nn.GELU(), nn.Linear(64, d_code), nn.GELU())

    def forward(self, x):
        return self.body(x)


class Denoiser(nn.Module):
    """Reconstructs clean rows from noisy ones; only its encoder is kept afterwards."""

    def __init__(self, d_in, d_code):
        super().__init__()
        self.encoder = Encoder(d_in, d_code)
        self.decoder = nn.Linear(d_code, d_in)

    def forward(self, x):
        return self.decoder(self.encoder(x))


class WineClassifier(nn.Module):
    def __init__(self, d_in, d_code, n_classes):
        super().__init__()
        self.encoder = Encoder(d_in, d_code)
        self.head = nn.Linear(d_code, n_classes)

    def forward(self, x):
        return self.head(self.encoder(x))


def pretrain(x):
    model = Denoiser(13, 24)
    opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(400):
        loss = nn.functional.mse_loss(model(x + 0.3 * torch.randn_like(x)), x)
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(f"[pretrain] reconstruction mse {loss.item():.3f}")
    buffer = io.BytesIO()
    torch.save(model.encoder.state_dict(), buffer)
    buffer.seek(0)
    return buffer


def main():
    torch.manual_seed(11)
    data = load_wine()
    x = torch.tensor(data.data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(data.target)
    order = torch.randperm(len(x))
    x, y = x[order], y[order]

    weights = pretrain(x)
    model = WineClassifier(13, 24, 3)
    model.encoder.load_state_dict(torch.load(weights))
    model.encoder.requires_grad_(False)

    loader = DataLoader(TensorDataset(x[:130], y[:130]), batch_size=26, shuffle=True)
    opt = torch.optim.SGD(model.head.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(60):
        total = 0.0
        for xb, yb in loader:
            loss = nn.functional.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            total += loss.item()
        if epoch % 10 == 9:
            with torch.no_grad():
                acc = (model(x[130:]).argmax(1) == y[130:]).float().mean()
            print(f"[head] epoch {epoch + 1:2d} train {total / len(loader):.4f} test acc {acc:.3f}")


if __name__ == "__main__":
    main()
