import torch
from torch import nn
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler
from sklearn.model_selection import train_test_split

torch.manual_seed(42)
data = load_breast_cancer()
x = StandardScaler().fit_transform(data.data)
x_train, x_test, y_train, y_test = train_test_split(x, data.target, random_state=1, stratify=data.target)
x_train, x_test = (torch.tensor(a, dtype=torch.float) for a in (x_train, x_test))
y_train, y_test = (torch.tensor(a, dtype=torch.float) for a in (y_train, y_test))

DEPTH, WIDTH = 14, 48


def build():
    layers, d = [], x_train.shape[1]
    for _ in range(DEPTH):
        layers += [nn.Linear(d, WIDTH), nn.Tanh()]
        d = WIDTH
    return nn.Sequential(*layers, nn.Linear(d, 1))


def init_weights(m):
    if isinstance(m, nn.Linear):
        nn.init.normal_(m.weight, std=0.04)
        nn.init.zeros_(m.bias)


model = build()
model.apply(init_weights)
criterion = nn.BCEWithLogitsLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

step = 0
while step < 300:
    for idx in torch.randperm(len(x_train)).split(32):
        optimizer.zero_grad()
        out = model(x_train[idx]).squeeze(1)
        loss = criterion(out, y_train[idx])
        loss.backward()
        optimizer.step()
        step += 1
    if step % 65 == 0:
        print("step", step, "loss", round(loss.item(), 4))

with torch.no_grad():
    acc = ((model(x_test).squeeze(1) > 0).float() == y_test).float().mean().item()
print("FINAL accuracy", acc)
