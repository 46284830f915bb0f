import torch
from torch import nn
from sklearn.datasets import make_regression

torch.manual_seed(59)


class ScoreNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.f = nn.Sequential(nn.Linear(d, 40), nn.SiLU(), nn.Linear(40, 1))

    def forward(self, x):
        return self.f(x)[:, 0]


X, Y = make_regression(1000, 12, n_informative=8, noise=3.0, random_state=59)
X = torch.as_tensor(X).float()
Y = torch.as_tensor(Y).float()
Y = (Y - Y.mean()) / Y.std()
train, hold = slice(0, 800), slice(800, None)

net = ScoreNet(12)
# summed over the rows on purpose, so the rate already contains 1/batch
criterion = nn.MSELoss(reduction="sum")
optimizer = torch.optim.SGD(net.parameters(), lr=2e-4, momentum=0.9)
for epoch in range(60):
    order = torch.randperm(800)
    total = 0.0
    for k in range(0, 800, 100):
        rows = order[k : k + 100]
        loss = criterion(net(X[train][rows]), Y[train][rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    if epoch % 10 == 9:
        with torch.no_grad():
            r = criterion(net(X[hold]), Y[hold]) / 200
        print(f"epoch {epoch + 1} summed loss per row {total / 800:.4f} held-out mse {r:.4f}")
