"""Daily returns from lagged factors. Signal-to-noise is tiny: an R2 of 0.05 is all there is."""
import torch
import torch.nn as nn


def market(n):
    f = torch.randn(n, 8)
    signal = 0.15 * f[:, 0] - 0.12 * f[:, 3] + 0.1 * torch.tanh(2 * f[:, 5])
    return f, signal + torch.randn(n), signal


class FactorModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.2), nn.Linear(16, 1))

    def forward(self, f):
        return self.layers(f).squeeze(-1)


if __name__ == "__main__":
    torch.manual_seed(359)
    f, r, _ = market(40000)
    ft, rt, st = market(10000)
    model = FactorModel()
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-2)
    for epoch in range(5):
        for idx in torch.randperm(len(f)).split(200):
            loss = nn.functional.mse_loss(model(f[idx]), r[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        model.eval()
        with torch.no_grad():
            p = model(ft)
            ic = torch.corrcoef(torch.stack([p, rt]))[0, 1]
            clean = torch.corrcoef(torch.stack([p, st]))[0, 1]
        model.train()
        print(f"epoch {epoch} mse {loss.item():.4f} correlation with returns {ic:.3f} with the true signal {clean:.3f}")
