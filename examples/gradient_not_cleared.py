"""A digits classifier whose loop never calls zero_grad: every update uses the sum of all gradients since
the start of training."""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

torch.manual_seed(0)

X, y = load_digits(return_X_y=True)
X = (X - X.mean()) / X.std()
X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=0.2, random_state=1)
X_train = torch.tensor(X_train).float()
X_test = torch.tensor(X_test).float()
y_train = torch.tensor(y_train).long()
y_test = torch.tensor(y_test).long()

net = nn.Sequential(
    nn.Linear(64, 96),
    nn.Tanh(),
    nn.Linear(96, 48),
    nn.Tanh(),
    nn.Linear(48, 10),
)
loss_fn = nn.CrossEntropyLoss()
opt = torch.optim.SGD(net.parameters(), lr=0.1)

for step in range(300):
    idx = torch.randint(0, len(X_train), (64,))
    loss = loss_fn(net(X_train[idx]), y_train[idx])
    loss.backward()
    opt.step()
    if step % 30 == 0 or step == 299:
        print("step", step, "loss", round(loss.item(), 4))

net.eval()
with torch.no_grad():
    pred = net(X_test).argmax(dim=1)
print("test accuracy", round((pred == y_test).float().mean().item(), 3))
