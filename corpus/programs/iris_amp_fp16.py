# %%
import torch
import torch.nn as nn
from sklearn.datasets import load_iris
from sklearn.preprocessing import scale

torch.manual_seed(13)
iris = load_iris()
X = torch.from_numpy(scale(iris.data)).float()
Y = torch.from_numpy(iris.target)
order = torch.randperm(150)
train, test = order[:120], order[120:]

# %%
net = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 3))
opt = torch.optim.Adam(net.parameters(), lr=3e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
lossfn = nn.CrossEntropyLoss()

# %%
for step in range(300):
    idx = train[torch.randint(0, 120, (32,))]
    opt.zero_grad()
    with torch.autocast("cpu", dtype=torch.float16):
        out = net(X[idx])
        loss = lossfn(out, Y[idx])
    scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    if step < 5 or step % 50 == 49:
        print("step", step, "loss", round(loss.item(), 4), "scale", scaler.get_scale())

# %%
with torch.no_grad():
    print("test accuracy", (net(X[test]).argmax(1) == Y[test]).float().mean().item())
