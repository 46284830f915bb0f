"""1-D convolutions over a table of sixteen measurements, regression of the yield."""
import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(8)
X = torch.randn(1500, 16)
y = torch.tanh(X[:, 0] - X[:, 1]) + X[:, 2] * X[:, 3] + 0.5 * X[:, 4].abs()
Xtr, ytr, Xte, yte = X[:900], y[:900], X[900:], y[900:]


class ConvTab(nn.Module):
    def __init__(self, n_feat):
        super().__init__()
        self.conv1 = nn.Conv1d(n_feat, 64, kernel_size=5, padding=2)
        self.conv2 = nn.Conv1d(64, 64, kernel_size=5, padding=2)
        self.out = nn.Linear(64, 1)

    def forward(self, x):
        x = x.t().unsqueeze(0)            # conv1d wants three dimensions
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.out(x.squeeze(0).t()).squeeze(1)


net = ConvTab(16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9)
for epoch in range(50):
    losses = []
    for idx in torch.randperm(len(Xtr)).split(60):
        optimizer.zero_grad()
        loss = F.mse_loss(net(Xtr[idx]), ytr[idx])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    if epoch % 10 == 9:
        with torch.no_grad():
            val = F.mse_loss(net(Xte), yte).item()
            single = F.mse_loss(torch.cat([net(Xte[i:i + 1]) for i in range(200)]), yte[:200]).item()
        print(f"epoch {epoch + 1} train {sum(losses) / len(losses):.4f} test {val:.4f} one by one {single:.4f} var {yte.var():.4f}")
