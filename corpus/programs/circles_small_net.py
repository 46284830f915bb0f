import torch
import torch.nn as nn
from sklearn.datasets import make_circles

torch.manual_seed(1)
X, y = make_circles(n_samples=1000, noise=0.05, factor=0.3, random_state=1)
X = torch.tensor(X, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32).reshape(-1, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(2, 16), nn.ReLU(),
            nn.Linear(16, 16), nn.ReLU(),
            nn.Linear(16, 16), nn.ReLU(),
            nn.Linear(16, 1), nn.Sigmoid(),
        )

    def forward(self, x):
        return self.layers(x)


net = Net()
loss_fn = nn.BCELoss()
opt = torch.optim.SGD(net.parameters(), lr=1e-5, momentum=0.9)

for epoch in range(60):
    perm = torch.randperm(1000)
    total, right = 0.0, 0
    for i in range(0, 1000, 32):
        xb, yb = X[perm[i:i + 32]], y[perm[i:i + 32]]
        p = net(xb)
        loss = loss_fn(p, yb)
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(xb)
        right += ((p > 0.5) == (yb > 0.5)).sum().item()
    if epoch % 6 == 5:
        print(f"epoch {epoch + 1}: loss {total / 1000:.5f} accuracy {right / 1000:.3f}")
