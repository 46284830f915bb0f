"""Customer churn with a one-unit output layer."""
import torch
from sklearn.datasets import make_classification
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(93)
X, y = make_classification(2000, 15, n_informative=8, flip_y=0.02, random_state=11)
X = torch.tensor(X, dtype=torch.float32)
y = torch.tensor(y, dtype=torch.float32).unsqueeze(1)
loader = DataLoader(TensorDataset(X[:1600], y[:1600]), batch_size=40, shuffle=True)

model = nn.Sequential(nn.Linear(15, 32), nn.ReLU(), nn.Linear(32, 1))
loss_fn = nn.CrossEntropyLoss()
opt = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(10):
    epoch_loss = 0
    for xb, yb in loader:
        opt.zero_grad()
        loss = loss_fn(model(xb), yb)
        loss.backward()
        opt.step()
        epoch_loss += loss.item()
    with torch.no_grad():
        acc = ((model(X[1600:]) > 0).float() == y[1600:]).float().mean()
    print(f"Epoch {epoch + 1}: loss={epoch_loss / len(loader):.4f} acc={acc:.4f}")
