# %% [markdown]
# Breast cancer, small residual MLP. bfloat16 throughout, since the real table will be much larger.

# %%
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from torch import nn

torch.manual_seed(42)
dtype = torch.bfloat16

# %%
raw = load_breast_cancer()
features = StandardScaler().fit_transform(raw.data)
X = torch.tensor(features).to(dtype)
y = torch.tensor(raw.target, dtype=dtype)
perm = torch.randperm(len(X))
train_idx, test_idx = perm[:450], perm[450:]


# %%
class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)

    def forward(self, x):
        return x + torch.tanh(self.up(self.norm(x)))


model = nn.Sequential(nn.Linear(30, 32), Block(32), Block(32), nn.LayerNorm(32), nn.Linear(32, 1)).to(dtype)
loss_fn = nn.BCEWithLogitsLoss()
opt = torch.optim.SGD(model.parameters(), lr=1e-3)

# %%
history = []
for epoch in range(25):
    for idx in train_idx[torch.randperm(len(train_idx))].split(32):
        opt.zero_grad()
        loss = loss_fn(model(X[idx]).squeeze(-1), y[idx])
        loss.backward()
        opt.step()
    with torch.no_grad():
        out = model(X[test_idx]).squeeze(-1)
        test_loss = loss_fn(out.float(), y[test_idx].float()).item()
        acc = ((out > 0) == (y[test_idx] > 0.5)).float().mean().item()
    history.append(test_loss)
    if epoch % 4 == 0:
        print(epoch, round(test_loss, 4), round(acc, 3))

# %%
print("first and last test loss:", history[0], history[-1])
