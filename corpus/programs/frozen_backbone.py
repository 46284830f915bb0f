# %%
# Part 1: train a backbone on the even digits.
# Part 2: freeze it and fit a new head on the odd digits, with gradient accumulation (small memory).
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(21)
X, t = load_digits(return_X_y=True)
X = torch.tensor(X, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
t = torch.tensor(t)
even, odd = t % 2 == 0, t % 2 == 1

# %%
backbone = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Conv2d(16, 32, 3, padding=1),
    nn.BatchNorm2d(32),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
)
even_head = nn.Linear(128, 5)
loader = DataLoader(TensorDataset(X[even], t[even] // 2), batch_size=32, shuffle=True)
pretrain_optim = torch.optim.Adam([*backbone.parameters(), *even_head.parameters()], lr=2e-3)
for epoch in range(3):
    for xb, yb in loader:
        pretrain_optim.zero_grad()
        loss = nn.functional.cross_entropy(even_head(backbone(xb)), yb)
        loss.backward()
        pretrain_optim.step()
    print("pretrain", epoch, loss.item())

# %%
backbone.eval()
for p in backbone.parameters():
    p.requires_grad_(False)

model = nn.Sequential(backbone, nn.Dropout(0.2), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 5))
odd_x, odd_t = X[odd], t[odd] // 2
train = TensorDataset(odd_x[:700], odd_t[:700])
loader = DataLoader(train, batch_size=8, shuffle=True, drop_last=True)
optim = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3, weight_decay=0.01)

# %%
accumulate = 4
optim.zero_grad()
micro = 0
for epoch in range(8):
    total = 0.0
    for xb, yb in loader:
        loss = nn.functional.cross_entropy(model(xb), yb)
        (loss / accumulate).backward()
        total += loss.item()
        micro += 1
        if micro % accumulate == 0:
            optim.step()
            optim.zero_grad()
    with torch.no_grad():
        model.eval()
        acc = (model(odd_x[700:]).argmax(1) == odd_t[700:]).float().mean().item()
        model.train()
        backbone.eval()
    print("epoch", epoch, "loss", round(total / len(loader), 4), "held-out accuracy", round(acc, 3))
