import numpy as np
import torch
from sklearn.datasets import load_wine
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler

torch.manual_seed(23)
X, y = load_wine(return_X_y=True)
X_tr, X_te, y_tr, y_te = train_test_split(X, y, test_size=0.3, stratify=y, random_state=7)
sc = StandardScaler().fit(X_tr)
X_tr, X_te = (torch.tensor(sc.transform(a), dtype=torch.float32) for a in (X_tr, X_te))
y_tr, y_te = torch.tensor(y_tr), torch.tensor(y_te)

model = torch.nn.Sequential(torch.nn.Linear(13, 32), torch.nn.ReLU(), torch.nn.Linear(32, 3))
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

train_losses = []
for epoch in range(300):
    model.train()
    outputs = model(X_tr)
    loss = criterion(outputs, y_tr)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
    train_losses.append(loss.item())
    if (epoch + 1) % 50 == 0:
        model.eval()
        with torch.no_grad():
            acc = (model(X_te).argmax(1) == y_te).float().mean().item()
        print("Epoch: {}, loss: {:.4f}, acc: {:.3f}".format(epoch + 1, np.mean(train_losses[-50:]), acc))
