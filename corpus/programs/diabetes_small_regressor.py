"""Disease progression from ten blood values with a small regularised network and early stopping."""
import copy

import torch
from torch import nn
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

torch.manual_seed(257)
x, y = load_diabetes(return_X_y=True)
xt, xv, yt, yv = train_test_split(x, y, test_size=0.4, random_state=4)
sx, sy = StandardScaler().fit(xt), StandardScaler().fit(yt[:, None])
xt, xv = torch.tensor(sx.transform(xt)).float(), torch.tensor(sx.transform(xv)).float()
yt, yv = torch.tensor(sy.transform(yt[:, None])).float(), torch.tensor(sy.transform(yv[:, None])).float()

model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 1))
opt = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.1)
best, best_state, patience = float("inf"), None, 0
for epoch in range(150):
    model.train()
    for idx in torch.randperm(len(xt)).split(33):
        loss = nn.functional.mse_loss(model(xt[idx]), yt[idx])
        opt.zero_grad()
        loss.backward()
        opt.step()
    model.eval()
    with torch.no_grad():
        val = nn.functional.mse_loss(model(xv), yv).item()
    if val < best - 1e-4:
        best, best_state, patience = val, copy.deepcopy(model.state_dict()), 0
    else:
        patience += 1
    if epoch % 10 == 9:
        print(f"epoch {epoch + 1} train {loss.item():.4f} val {val:.4f}")
    if patience == 30:
        break
model.load_state_dict(best_state)
print(f"stopped after epoch {epoch + 1}, best val {best:.4f}")
