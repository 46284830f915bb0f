"""Coarse and fine labels with two heads and a penalty for answers that contradict the hierarchy."""
import torch
import torch.nn as nn

COARSE, FINE_PER = 3, 4
PARENT = torch.arange(COARSE * FINE_PER) // FINE_PER


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 32), nn.ReLU())
        self.coarse = nn.Linear(32, COARSE)
        self.fine = nn.Linear(32, COARSE * FINE_PER)

    def forward(self, x):
        h = self.trunk(x)
        return self.coarse(h), self.fine(h)


class HierarchyLoss(nn.Module):
    def __init__(self, beta=1.0):
        super().__init__()
        self.beta = beta
        self.ce = nn.CrossEntropyLoss()

    def layer_loss(self, coarse, fine, yc, yf):
        return self.ce(coarse, yc) + self.ce(fine, yf)

    def dependence_loss(self, coarse, fine):
        pc, pf = coarse.argmax(1), fine.argmax(1)
        contradiction = torch.FloatTensor([float(PARENT[f] != c) for c, f in zip(pc.tolist(), pf.tolist())])
        return contradiction.mean()

    def forward(self, coarse, fine, yc, yf):
        return self.layer_loss(coarse, fine, yc, yf) + self.beta * self.dependence_loss(coarse, fine)


torch.manual_seed(114)
centres = torch.randn(12, 10) + 1.2 * torch.randn(3, 10)[PARENT]


def draw(n):
    f = torch.randint(12, (n,))
    return centres[f] + 1.3 * torch.randn(n, 10), PARENT[f], f


model, criterion = TwoHeads(), HierarchyLoss(beta=2.0)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(1, 701):
    x, yc, yf = draw(64)
    coarse, fine = model(x)
    loss = criterion(coarse, fine, yc, yf)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 100 == 0:
        with torch.no_grad():
            x, yc, yf = draw(1000)
            c, f = model(x)
            bad = (PARENT[f.argmax(1)] != c.argmax(1)).float().mean()
        print(f"step {step} loss {loss.item():.4f} fine accuracy {(f.argmax(1) == yf).float().mean():.3f} contradictions {bad:.3f}")
