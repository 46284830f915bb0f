# Do two noisy digits show the same number? Shared encoder, probability of "same".
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits

torch.manual_seed(76)
d = load_digits()
IMG, LAB = torch.tensor(d.images / 8 - 1, dtype=torch.float32).unsqueeze(1), torch.tensor(d.target)


def pairs(n, lo, hi):
    a = torch.randint(lo, hi, (n,))
    b = torch.randint(lo, hi, (n,))
    same = torch.rand(n) < 0.25
    for i in torch.nonzero(same).flatten().tolist():
        pool = torch.nonzero(LAB[lo:hi] == LAB[a[i]]).flatten() + lo
        b[i] = pool[torch.randint(len(pool), (1,))]
    return a, b, (LAB[a] == LAB[b]).float()


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(256, 32))
        self.cmp = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, a, b):
        diff = (self.enc(a) - self.enc(b)).abs()
        return torch.sigmoid(self.cmp(diff)).flatten()


net = Siamese()
opt = torch.optim.RMSprop(net.parameters(), lr=1e-3)
a, b, same = pairs(6400, 0, 1400)
va, vb, vs = pairs(600, 1400, 1797)
for epoch in range(6):
    for k in torch.randperm(6400).split(64):
        loss = F.binary_cross_entropy_with_logits(net(IMG[a[k]], IMG[b[k]]), same[k])
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        p = net(IMG[va], IMG[vb])
        tpr = (p[vs == 1] > 0.5).float().mean()
        tnr = (p[vs == 0] <= 0.5).float().mean()
    print(f"epoch {epoch} loss {loss.item():.4f} same found {tpr:.3f} different found {tnr:.3f}")
