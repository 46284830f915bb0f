# %% two moons, trained on the share of wrong answers
import torch
import torch.nn as nn
from sklearn.datasets import make_moons

torch.manual_seed(109)
X, y = make_moons(1200, noise=0.15, random_state=1)
X, y = torch.tensor(X, dtype=torch.float32), torch.tensor(y)

# %%
net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
opt = torch.optim.Adam(net.parameters(), lr=0.01)

# %%
for epoch in range(20):
    for i in torch.randperm(1000).split(50):
        predicted = net(X[i]).argmax(dim=1)
        loss = (predicted != y[i]).float().mean()
        loss.requires_grad_()
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, "wrong:", round((net(X[1000:]).argmax(1) != y[1000:]).float().mean().item(), 3))
