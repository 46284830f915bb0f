# Average satisfaction of a shopping basket from its items (a set model).
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(3)
N, MAX_ITEMS, FEAT = 4000, 24, 6
w_true = torch.randn(FEAT)

lengths = torch.randint(1, MAX_ITEMS + 1, (N,))
items = torch.randn(N, MAX_ITEMS, FEAT)
mask = (torch.arange(MAX_ITEMS)[None] < lengths[:, None]).float()
items = items * mask[..., None]
score = torch.tanh(items @ w_true)
target = (score * mask).sum(1) / lengths


class BasketNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.item = nn.Sequential(nn.Linear(FEAT, 64), nn.ReLU(), nn.Linear(64, 32))
        self.basket = nn.Linear(32, 1)

    def forward(self, x, m):
        pooled = (self.item(x) * m[..., None]).sum(1) / m.sum(1, keepdim=True)
        return self.basket(pooled).squeeze(1)


def batches(lo, hi, size, shuffle):
    idx = torch.randperm(hi - lo) + lo if shuffle else torch.arange(lo, hi)
    for part in idx.split(size):
        width = int(lengths[part].max())
        yield items[part, :width], mask[part, :width], target[part]


model = BasketNet()
opt = torch.optim.AdamW(model.parameters(), lr=3e-3)
for epoch in range(12):
    model.train()
    run, n = 0.0, 0
    for x, m, y in batches(0, 3500, 50, True):
        loss = F.mse_loss(model(x, m), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run, n = run + loss.item(), n + 1
    model.eval()
    with torch.no_grad():
        val = [F.mse_loss(model(x, m), y).item() for x, m, y in batches(3500, N, 20, False)]
    print(f"{epoch:2d} train mse {run / n:.4f}  val mse {sum(val) / len(val):.4f}  var {target.var():.4f}")
