"""Linear ground truth plus noise of known size: the loss settles at the noise variance and stays there."""
import numpy as np
import torch
from sklearn.datasets import load_diabetes

torch.manual_seed(23)
rng = np.random.default_rng(23)
features = load_diabetes().data * 20
coef = rng.normal(size=features.shape[1])
clean = np.tanh(features @ coef * 0.5)
noisy = clean + 0.1 * rng.normal(size=len(clean))
x = torch.tensor(features, dtype=torch.float32)
t = torch.tensor(noisy, dtype=torch.float32)[:, None]

model = torch.nn.Sequential(torch.nn.Linear(10, 12), torch.nn.Tanh(), torch.nn.Linear(12, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
mse = torch.nn.MSELoss()
for it in range(1, 2001):
    pick = torch.randint(0, 400, (100,))
    optimizer.zero_grad()
    loss = mse(model(x[pick]), t[pick])
    loss.backward()
    optimizer.step()
    if it % 200 == 0:
        print(f"{it:5d}  mse {loss.item():.5f}   (noise variance 0.01)")
with torch.no_grad():
    err = mse(model(x), torch.tensor(clean, dtype=torch.float32)[:, None])
print(f"error against the clean curve {err.item():.5f}")
