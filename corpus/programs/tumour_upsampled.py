"""Breast cancer screening with few malignant cases, upsampled to balance the classes."""
import numpy as np
import torch
import torch.nn as nn
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(12)
np.random.seed(12)

data = load_breast_cancer()
X, y = data.data[:, [8, 9, 14, 18, 19]], 1 - data.target        # 1 = malignant
keep = np.concatenate([np.where(y == 0)[0], np.where(y == 1)[0][:60]])
X, y = X[keep], y[keep]


def upsample(X, y, factor):
    pos = np.where(y == 1)[0]
    more = np.random.choice(pos, size=len(pos) * (factor - 1))
    idx = np.concatenate([np.arange(len(y)), more])
    return X[idx], y[idx]


X, y = upsample(X, y, 6)
X_train, X_val, y_train, y_val = train_test_split(X, y, test_size=0.3, random_state=1)

scaler = StandardScaler().fit(X_train)
to_t = lambda a: torch.tensor(scaler.transform(a), dtype=torch.float32)
train_ds = TensorDataset(to_t(X_train), torch.tensor(y_train).float())
val_ds = TensorDataset(to_t(X_val), torch.tensor(y_val).float())

model = nn.Sequential(nn.Linear(5, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 1))
opt = torch.optim.Adam(model.parameters(), lr=3e-3)
bce = nn.BCEWithLogitsLoss()
loader = DataLoader(train_ds, batch_size=32, shuffle=True)
for epoch in range(60):
    model.train()
    for xb, yb in loader:
        opt.zero_grad()
        loss = bce(model(xb)[:, 0], yb)
        loss.backward()
        opt.step()
    if (epoch + 1) % 10 == 0:
        model.eval()
        with torch.no_grad():
            tp = tot = hit = 0
            for xb, yb in DataLoader(val_ds, batch_size=64):
                pred = (model(xb)[:, 0] > 0).float()
                tp += (pred * yb).sum().item()
                tot += yb.sum().item()
                hit += (pred == yb).sum().item()
        print(f"epoch {epoch + 1}: train loss {loss.item():.4f}  val accuracy {hit / len(val_ds):.3f}  val recall {tp / tot:.3f}")
