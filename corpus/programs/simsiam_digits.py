import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cosine_similarity


class SimSiam(nn.Module):
    def __init__(self, d=64):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, d), nn.BatchNorm1d(d, affine=False)
        )
        self.predictor = nn.Sequential(nn.Linear(d, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, d))

    def forward(self, a, b):
        za, zb = self.encoder(a), self.encoder(b)
        pa, pb = self.predictor(za), self.predictor(zb)
        return -0.5 * (cosine_similarity(pa, zb.detach()).mean() + cosine_similarity(pb, za.detach()).mean())


def view(x):
    return x * (torch.rand_like(x) > 0.25) + 0.1 * torch.randn_like(x)


torch.manual_seed(33)
data = load_digits()
x = torch.tensor(data.data / 16, dtype=torch.float32)
labels = torch.tensor(data.target)
model = SimSiam()
opt = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, weight_decay=1e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 500)
for step in range(500):
    rows = x[torch.randint(0, len(x), (256,))]
    loss = model(view(rows), view(rows))
    opt.zero_grad()
    loss.backward()
    opt.step()
    sched.step()
    if step % 50 == 0:
        print(f"{step:4d} similarity loss {loss.item():+.4f}")
model.eval()
with torch.no_grad():
    z = model.encoder(x)
    print("spread of the normalised codes", nn.functional.normalize(z, dim=1).std(0).mean().item())
    d = torch.cdist(nn.functional.normalize(z, dim=1), nn.functional.normalize(z, dim=1))
    d.fill_diagonal_(9)
    print("1-nn accuracy", (labels[d.argmin(1)] == labels).float().mean().item())
