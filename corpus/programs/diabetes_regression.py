"""Disease progression after one year, in the units of the table, from ten measurements."""

import numpy as np
import torch
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import StandardScaler
from torch import nn

np.random.seed(0)
torch.manual_seed(0)

X, y = load_diabetes(return_X_y=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=0)
scaler = StandardScaler().fit(X_train)
X_train = torch.tensor(scaler.transform(X_train), dtype=torch.float32)
X_test = torch.tensor(scaler.transform(X_test), dtype=torch.float32)
y_train = torch.tensor(y_train, dtype=torch.float32).unsqueeze(1)
y_test = torch.tensor(y_test, dtype=torch.float32).unsqueeze(1)
print(f"target: mean {y_train.mean():.0f}, sd {y_train.std():.0f}")

model = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
mse = nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

for epoch in range(1, 31):
    model.train()
    for rows in torch.randperm(len(X_train)).split(32):
        loss = mse(model(X_train[rows]), y_train[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if epoch % 5 == 0:
        model.eval()
        with torch.no_grad():
            test = mse(model(X_test), y_test).item()
        r2 = 1 - test / y_test.var(unbiased=False).item()
        print(f"epoch {epoch}: train batch {loss.item():.0f}, test {test:.0f}, R2 {r2:.2f}")
