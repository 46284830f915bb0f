"""Convolutional net with batch norm on noisy digits, validated after every epoch."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1 = nn.Conv2d(1, 16, 3, padding=1)
        self.b1 = nn.BatchNorm2d(16)
        self.c2 = nn.Conv2d(16, 32, 3, padding=1)
        self.b2 = nn.BatchNorm2d(32)
        self.c3 = nn.Conv2d(32, 32, 3, padding=1)
        self.b3 = nn.BatchNorm2d(32)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(32 * 4, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.b1(self.c1(x))), 2)
        x = F.max_pool2d(F.relu(self.b2(self.c2(x))), 2)
        x = F.relu(self.b3(self.c3(x)))
        return self.fc(self.drop(x.flatten(1)))


def validate(net, x, y):
    net.eval()
    with torch.no_grad():
        out = net(x)
    return F.cross_entropy(out, y).item(), (out.argmax(1) == y).float().mean().item()


torch.manual_seed(16)
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
images = images + 4.0 * torch.randn_like(images)
target = torch.tensor(digits.target)
train_x, val_x = images[:600], images[600:]
train_y, val_y = target[:600], target[600:]

net = Net()
opt = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
print("before training: val loss %.3f, accuracy %.3f" % validate(net, val_x, val_y))
for epoch in range(25):
    losses = []
    for idx in torch.randperm(len(train_x)).split(50):
        opt.zero_grad()
        loss = F.cross_entropy(net(train_x[idx]), train_y[idx])
        loss.backward()
        opt.step()
        losses.append(loss.item())
    vl, va = validate(net, val_x, val_y)
    print(f"epoch {epoch + 1}: train loss {sum(losses) / len(losses):.3f}, val loss {vl:.3f}, accuracy {va:.3f}")
