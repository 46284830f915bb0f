import numpy as np
import torch
from sklearn.datasets import make_circles
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HIDDEN_LAYERS = 11
UNITS = 5


def make_model():
    modules = []
    size = 2
    for _ in range(HIDDEN_LAYERS):
        lin = nn.Linear(size, UNITS)
        nn.init.xavier_uniform_(lin.weight)
        nn.init.zeros_(lin.bias)
        modules.extend([lin, nn.Sigmoid()])
        size = UNITS
    modules.append(nn.Linear(size, 1))
    return nn.Sequential(*modules)


torch.manual_seed(1)
X, y = make_circles(n_samples=1000, noise=0.1, factor=0.4, random_state=1)
data = TensorDataset(torch.tensor(X, dtype=torch.float32), torch.tensor(y, dtype=torch.float32)[:, None])
loader = DataLoader(data, batch_size=32, shuffle=True)
model = make_model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = nn.BCEWithLogitsLoss()
for epoch in range(40):
    losses, correct = [], 0
    for xb, yb in loader:
        optimizer.zero_grad()
        out = model(xb)
        loss = criterion(out, yb)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        correct += ((out > 0) == (yb > 0.5)).sum().item()
    if epoch % 4 == 3:
        print("epoch %d loss %.4f acc %.3f" % (epoch + 1, np.mean(losses), correct / len(data)))
