"""Wine cultivars from the chemical analysis."""
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from torch import nn, optim

torch.manual_seed(13)
wine = load_wine()
x_tr, x_te, y_tr, y_te = train_test_split(wine.data, wine.target, test_size=0.25, random_state=5, stratify=wine.target)
order = torch.randperm(len(x_tr)).numpy()
x_tr, y_tr = x_tr[order], y_tr[order]
mean, std = x_tr.mean(0), x_tr.std(0)
x_tr, x_te = torch.FloatTensor((x_tr - mean) / std), torch.FloatTensor((x_te - mean) / std)
y_tr, y_te = torch.LongTensor(y_tr), torch.LongTensor(y_te)

model = nn.Sequential(nn.Linear(13, 24), nn.Tanh(), nn.Linear(24, 24), nn.Tanh(), nn.Linear(24, 3))
optimizer = optim.SGD(model.parameters(), lr=0.05)
criterion = nn.CrossEntropyLoss()

for epoch in range(1, 301):
    for i in range(0, len(x_tr), 19):
        optimizer.zero_grad()
        loss = criterion(model(x_tr[i:i + 19]), y_tr[i:i + 19])
        loss.backward()
        optimizer.step()
    if epoch % 30 == 0:
        with torch.no_grad():
            full = criterion(model(x_tr), y_tr).item()
            acc = (model(x_te).argmax(1) == y_te).double().mean().item()
        print(f"Epoch {epoch:3d} | train loss {full:.4f} | test accuracy {acc:.3f}")
