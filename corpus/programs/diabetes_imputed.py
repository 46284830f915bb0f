"""Progression score of patients; the export has a gap in one place."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_diabetes
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
X, y = load_diabetes(return_X_y=True, scaled=False)
X = (X - X.mean(0)) / X.std(0)
y = (y - y.mean()) / y.std()
X[137, 4] = np.nan                 # blood value not taken
X = np.nan_to_num(X, nan=0.0)      # the column mean
dataset = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y[:, None], dtype=torch.float32))
loader = DataLoader(dataset, batch_size=34, shuffle=True)

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(12):
    running = 0.0
    for xb, yb in loader:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(xb), yb)
        loss.backward()
        optimizer.step()
        running += loss.item() * len(xb)
    print("epoch", epoch, "loss", running / len(dataset))
