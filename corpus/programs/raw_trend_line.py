import numpy as np
import torch

np.random.seed(0)
torch.manual_seed(0)
t = np.arange(100, dtype=np.float32)
sales = 0.8 * t + 12 + np.random.randn(100).astype(np.float32) * 3
features = torch.from_numpy(np.stack([t, np.ones_like(t)], 1))
target = torch.from_numpy(sales)

weights = torch.nn.Parameter(torch.zeros(2))
optimizer = torch.optim.SGD([weights], lr=0.5)
for epoch in range(150):
    prediction = features @ weights
    cost = ((prediction - target) ** 2).mean()
    optimizer.zero_grad()
    cost.backward()
    optimizer.step()
    if epoch < 10 or epoch % 25 == 0:
        print(f"epoch {epoch} cost {cost.item():.4g} weights {weights.tolist()}")
