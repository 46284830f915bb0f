"""Match pictures and captions with a two-tower model and a cosine softmax over the batch."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class Tower(nn.Module):
    def __init__(self, n_in, dim=24):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(n_in, 64), nn.ReLU(), nn.Linear(64, dim))

    def forward(self, x):
        return F.normalize(self.net(x), dim=1)


class Matcher(nn.Module):
    def __init__(self, temperature=0.07):
        super().__init__()
        self.image, self.text = Tower(32), Tower(20)
        self.temperature = temperature

    def forward(self, img, txt):
        return self.image(img) @ self.text(txt).t() / self.temperature


def pairs(n, a, b):
    z = torch.randn(n, 10)
    return torch.tanh(z @ a) + 0.4 * torch.randn(n, 32), torch.tanh(z @ b) + 0.4 * torch.randn(n, 20)


def loss_fn(logits):
    labels = torch.arange(len(logits))
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


torch.manual_seed(100)
a, b = torch.randn(10, 32) / 3, torch.randn(10, 20) / 3
img, txt = pairs(4000, a, b)
vi, vt = pairs(200, a, b)
model = Matcher()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(1, 501):
    idx = torch.randint(0, 4000, (64,))
    loss = loss_fn(model(img[idx], txt[idx]))
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 50 == 0 or step == 1:
        with torch.no_grad():
            hit = (model(vi, vt).argmax(1) == torch.arange(200)).float().mean()
        print(f"step {step} loss {loss.item():.3f} top-1 among 200: {hit:.3f}")
