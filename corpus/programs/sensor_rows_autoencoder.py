"""Dense autoencoder for standardised sensor rows."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader, TensorDataset


def dense(n_in, n_out):
    return nn.Sequential(nn.Linear(n_in, n_out), nn.ReLU())


class AutoEncoder(nn.Module):
    def __init__(self, n_features=24, code=12):
        super().__init__()
        self.encoder = nn.Sequential(dense(n_features, 48), nn.Linear(48, code))
        self.decoder = nn.Sequential(dense(code, 48), nn.Linear(48, n_features))

    def forward(self, rows):
        return self.decoder(self.encoder(rows))


def make_rows(n=1000, n_features=24, factors=5):
    loadings = torch.randn(factors, n_features)
    rows = torch.randn(n, factors) @ loadings + 0.1 * torch.randn(n, n_features)
    return (rows - rows.mean(0)) / rows.std(0)


torch.manual_seed(17)
rows = make_rows()
loader = DataLoader(TensorDataset(rows), batch_size=50, shuffle=True)
ae = AutoEncoder()
opt = torch.optim.Adam(ae.parameters(), lr=2e-3)
for epoch in range(40):
    total = 0.0
    for (batch,) in loader:
        err = ((ae(batch) - batch) ** 2).mean()
        opt.zero_grad()
        err.backward()
        opt.step()
        total += err.item()
    if epoch % 5 == 4:
        print(f"epoch {epoch + 1} reconstruction error {total / len(loader):.4f} (variance 1.0)")
