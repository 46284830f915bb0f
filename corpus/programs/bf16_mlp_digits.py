import torch
import torch.nn as nn
from sklearn.datasets import load_digits

torch.manual_seed(199)
d = load_digits()
X = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1).sub(8).div(8)
Y = torch.tensor(d.target)
train_idx, test_idx = torch.arange(0, 1500), torch.arange(1500, 1797)

model = nn.Sequential(
    nn.Flatten(), nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64), nn.GELU(), nn.Linear(64, 10)
)
opt = torch.optim.AdamW(model.parameters(), lr=2e-3)
for epoch in range(8):
    model.train()
    for idx in train_idx[torch.randperm(1500)].split(75):
        with torch.autocast(device_type="cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(X[idx]), Y[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad(), torch.autocast(device_type="cpu", dtype=torch.bfloat16):
        acc = (model(X[test_idx]).argmax(1) == Y[test_idx]).float().mean().item()
    print(f"epoch {epoch} loss {loss.item():.4f} acc {acc:.3f}")
