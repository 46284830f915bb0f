"""Linear autoencoder: two matrices, no activation, should span the principal components."""
import numpy as np
import torch
from torch import nn
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA


class LinearAE(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.encode = nn.Linear(d, k, bias=False)
        self.decode = nn.Linear(k, d, bias=False)

    def forward(self, x):
        return self.decode(self.encode(x))


def main(k=8):
    torch.manual_seed(179)
    raw = load_digits().data / 16
    x = torch.tensor(raw - raw.mean(0), dtype=torch.float32)
    best = PCA(k).fit(x.numpy())
    floor = float(np.mean((x.numpy() - best.inverse_transform(best.transform(x.numpy()))) ** 2))
    net = LinearAE(64, k)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    for step in range(1, 1001):
        batch = x[torch.randint(0, len(x), (128,))]
        loss = nn.functional.mse_loss(net(batch), batch)
        opt.zero_grad()
        loss.backward()
        opt.step()
        if step % 200 == 0:
            with torch.no_grad():
                full = nn.functional.mse_loss(net(x), x).item()
            print(f"step {step}: reconstruction {full:.5f}, PCA optimum {floor:.5f}")


if __name__ == "__main__":
    main()
