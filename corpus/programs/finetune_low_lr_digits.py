import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

torch.manual_seed(19)


def load():
    d = load_digits()
    x = torch.tensor(d.data / 8.0 - 1.0, dtype=torch.float32)
    y = torch.tensor(d.target)
    p = torch.randperm(len(x))
    return x[p[:1500]], y[p[:1500]], x[p[1500:]], y[p[1500:]]


def epoch_pass(model, opt, x, y, bs=50):
    total = 0.0
    for idx in torch.randperm(len(x)).split(bs):
        loss = F.cross_entropy(model(x[idx]), y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
        total += loss.item() * len(idx)
    return total / len(x)


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


xtr, ytr, xte, yte = load()
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 10))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
for e in range(8):
    l = epoch_pass(model, opt, xtr, ytr)
print(f"base training: loss {l:.4f} test {accuracy(model, xte, yte):.3f}")
checkpoint = {k: v.clone() for k, v in model.state_dict().items()}

# gentle fine-tuning on everything, starting from the checkpoint
model.load_state_dict(checkpoint)
opt = torch.optim.AdamW(model.parameters(), lr=1e-6)
for e in range(12):
    l = epoch_pass(model, opt, xtr, ytr)
    print(f"fine-tune epoch {e} loss {l:.5f} test {accuracy(model, xte, yte):.3f}")
