"""Identify 20 people from face vectors with a cosine classifier; the bank of class vectors is scaled up."""
import torch
import torch.nn as nn

torch.manual_seed(101)
PEOPLE, DIM = 20, 24
faces = torch.randn(PEOPLE, DIM)


def batch(n):
    who = torch.randint(PEOPLE, (n,))
    return faces[who] + 0.7 * torch.randn(n, DIM), who


class FaceNet(nn.Module):
    def __init__(self, scale=400.0):
        super().__init__()
        self.scale = scale
        self.trunk = nn.Sequential(nn.Linear(DIM, 64), nn.PReLU(), nn.Linear(64, 32))
        self.bank = nn.Parameter(torch.randn(PEOPLE, 32))

    def forward(self, x):
        v = nn.functional.normalize(self.trunk(x), dim=1)
        c = nn.functional.normalize(self.bank, dim=1)
        return self.scale * v @ c.t()


net = FaceNet()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
criterion = nn.CrossEntropyLoss(label_smoothing=0.05)
log = []
for it in range(800):
    x, who = batch(50)
    loss = criterion(net(x), who)
    opt.zero_grad()
    loss.backward()
    opt.step()
    log.append(loss.item())
    if it % 100 == 0 or it == 799:
        x, who = batch(1000)
        with torch.no_grad():
            acc = (net(x).argmax(1) == who).float().mean()
        print(f"it {it} loss {sum(log[-50:]) / len(log[-50:]):.3f} accuracy {acc:.3f}")
