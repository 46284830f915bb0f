# Learn sin(x) sampled at 0, 1, 2, ... 1000 (x in degrees)
import numpy as np
import torch
import torch.nn as nn

torch.manual_seed(0)
x = np.arange(0, 1001).reshape(-1, 1)
y = np.sin(np.deg2rad(x))
x = torch.tensor(x, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32)

model = nn.Sequential(
    nn.Linear(1, 40), nn.Tanh(),
    nn.Linear(40, 60), nn.Tanh(),
    nn.Linear(60, 30), nn.ReLU(),
    nn.Linear(30, 1),
)
optimizer = torch.optim.Adam(model.parameters())
mse = nn.MSELoss()
for epoch in range(60):
    p = torch.randperm(1001)
    for i in range(0, 1001, 50):
        idx = p[i:i + 50]
        optimizer.zero_grad()
        loss = mse(model(x[idx]), y[idx])
        loss.backward()
        optimizer.step()
    if epoch % 10 == 9:
        with torch.no_grad():
            full = mse(model(x), y)
        print("epoch", epoch + 1, "mse", round(full.item(), 4), "R2", round(1 - full.item() / y.var().item(), 3))
