"""Mixer-like MLP on digits with a loss scaler, SGD and clipping."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Mixer(nn.Module):
    def __init__(self, tokens=16, dim=16, classes=10):
        super().__init__()
        self.patch = nn.Linear(4, dim)
        self.n1, self.n2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mix = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.chan = nn.Sequential(nn.Linear(dim, 32), nn.GELU(), nn.Linear(32, dim))
        self.head = nn.Linear(tokens * dim, classes)

    def forward(self, img):
        p = img.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(img), 16, 4)
        h = self.patch(p)
        h = h + self.mix(self.n1(h).transpose(1, 2)).transpose(1, 2)
        h = h + self.chan(self.n2(h))
        return self.head(h.flatten(1))


def main():
    torch.manual_seed(39)
    d = load_digits()
    x, y = torch.tensor(d.images, dtype=torch.float32) / 16, torch.tensor(d.target)
    model = Mixer()
    opt = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0 ** 16)
    for epoch in range(10):
        total = 0.0
        for idx in torch.randperm(1400).split(50):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x[idx])
            loss = F.cross_entropy(logits.float(), y[idx])
            opt.zero_grad()
            scaler.scale(loss).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(opt)
            scaler.update()
            total += loss.item() * len(idx) / 1400
        with torch.no_grad():
            acc = (model(x[1400:]).argmax(1) == y[1400:]).float().mean().item()
        print(f"epoch {epoch + 1} loss {total:.4f} acc {acc:.3f} scale {scaler.get_scale():g}")


main()
