import torch
import torch.nn as nn
from sklearn.datasets import load_iris
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 25
LR = 0.01

torch.manual_seed(10)
x, y = load_iris(return_X_y=True)
x = torch.tensor((x - x.mean(0)) / x.std(0), dtype=torch.float32)
y = torch.tensor(y)
x_tr, x_te, y_tr, y_te = train_test_split(x, y, test_size=50, stratify=y, random_state=1)

model = nn.Sequential(
    nn.Linear(4, 24), nn.BatchNorm1d(24), nn.ReLU(),
    nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU(),
    nn.Linear(24, 3),
)
loader = DataLoader(TensorDataset(x_tr, y_tr), batch_size=BATCH_SIZE, shuffle=True)
optimizer = torch.optim.Adam(model.parameters(), lr=LR)
loss_function = nn.CrossEntropyLoss()

for epoch in range(40):
    model.train()
    total = 0.0
    for features, labels in loader:
        loss = loss_function(model(features), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    model.eval()
    with torch.no_grad():
        logits = model(x_te)
        test_loss = loss_function(logits, y_te)
        acc = (logits.argmax(1) == y_te).float().mean()
    print(f"epoch {epoch + 1:2d} train loss {total / len(loader):.3f} test loss {test_loss:.3f} test acc {acc:.3f}")
