# %% sanity check from the checklist: can the network memorise eight images?
import torch
import torch.nn as nn
from sklearn.datasets import load_digits

torch.manual_seed(107)
d = load_digits()
x = torch.tensor(d.images[:8], dtype=torch.float32)[:, None] / 16
y = torch.tensor(d.target[:8])

# %%
net = nn.Sequential(
    nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(),
    nn.AvgPool2d(2),
    nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(),
    nn.Flatten(), nn.Linear(24 * 16, 10),
)
opt = torch.optim.Adam(net.parameters(), lr=2e-3)

# %%
for step in range(250):
    loss = nn.functional.cross_entropy(net(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    if step % 25 == 0:
        print(step, f"{loss.item():.6f}")

# %%
assert (net(x).argmax(1) == y).all()
print("memorised, final loss", f"{loss.item():.2e}")
