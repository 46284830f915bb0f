"""Six independent attributes of a photo from 20 features."""
import torch
from torch import nn, optim

torch.manual_seed(90)
A = torch.randn(20, 6)


def photos(n):
    x = torch.randn(n, 20)
    return x, (x @ A + 0.5 * torch.randn(n, 6) > 0).float()


class AttributeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(20, 200), nn.ReLU(), nn.Dropout(0.1), nn.Linear(200, 60), nn.ReLU())
        self.head = nn.Linear(60, 6)

    def forward(self, x):
        return self.head(self.trunk(x))


x, y = photos(4000)
xt, yt = photos(600)
net = AttributeNet()
criterion = nn.BCEWithLogitsLoss()
optimizer = optim.SGD(net.parameters(), lr=0.01, momentum=0.9, nesterov=True)
for epoch in range(12):
    net.train()
    for i in torch.randperm(4000).split(100):
        optimizer.zero_grad()
        loss = criterion(net(x[i]), y[i])
        loss.backward()
        optimizer.step()
    net.eval()
    with torch.no_grad():
        guess = (torch.sigmoid(net(xt)) > 0.5).float()
        print(f"epoch {epoch + 1} loss {loss.item():.4f} attribute accuracy {(guess == yt).float().mean():.3f}")
