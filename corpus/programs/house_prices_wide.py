"""House prices in euros from standardised features, Adam with a step schedule."""
import torch
import torch.nn as nn
from sklearn.datasets import make_regression
from torch.utils.data import DataLoader, TensorDataset, random_split

torch.manual_seed(29)


def houses(n=2400):
    x, z = make_regression(n, 10, n_informative=7, noise=8.0, random_state=4)
    price = 310_000 + 95_000 * z / z.std()
    return TensorDataset(torch.tensor(x, dtype=torch.float32), torch.tensor(price, dtype=torch.float32))


class PriceModel(nn.Module):
    def __init__(self, n_in=10, width=64):
        super().__init__()
        self.wide = nn.Linear(n_in, 1)
        self.deep = nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1))

    def forward(self, x):
        return (self.wide(x) + self.deep(x)).squeeze(-1)


train_set, test_set = random_split(houses(), [2000, 400])
train_loader = DataLoader(train_set, batch_size=50, shuffle=True)
model = PriceModel()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.StepLR(opt, step_size=10, gamma=0.5)
for epoch in range(20):
    model.train()
    for x, y in train_loader:
        opt.zero_grad()
        loss = nn.functional.l1_loss(model(x), y)
        loss.backward()
        opt.step()
    sched.step()
    if epoch % 4 == 3:
        model.eval()
        with torch.no_grad():
            x, y = test_set[:]
            out = model(x)
        print(f"epoch {epoch + 1}: off by {(out - y).abs().mean():,.0f} euros on average, mean forecast {out.mean():,.0f}")
