"""Digits with a convolutional net ."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch.utils.data import DataLoader, TensorDataset


class QuietConv(nn.Module):
    def __init__(self, cin, cout, rest=0.0):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, 3, padding=1)
        # resting level of the filters
        nn.init.constant_(self.conv.bias, rest)

    def forward(self, x):
        return F.relu(self.conv(x))


class SparseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stage1 = QuietConv(1, 12)
        self.stage2 = QuietConv(12, 24)
        self.head = nn.Linear(24 * 16, 10)

    def forward(self, x):
        x = self.stage1(x)
        x = F.max_pool2d(self.stage2(x), 2)
        return self.head(x.flatten(1))


def main():
    torch.manual_seed(11)
    d = load_digits()
    x = torch.tensor(d.images, dtype=torch.float32).unsqueeze(1) / 16
    y = torch.tensor(d.target)
    xt, xv, yt, yv = train_test_split(x, y, test_size=0.25, random_state=0)
    loader = DataLoader(TensorDataset(xt, yt), batch_size=64, shuffle=True)
    model = SparseNet()
    opt = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(12):
        model.train()
        seen, running = 0, 0.0
        for xb, yb in loader:
            loss = F.cross_entropy(model(xb), yb)
            opt.zero_grad()
            loss.backward()
            opt.step()
            running += loss.item() * len(xb)
            seen += len(xb)
        model.eval()
        with torch.no_grad():
            acc = (model(xv).argmax(1) == yv).float().mean()
        print(f"{epoch:02d} train loss {running / seen:.4f} val acc {acc:.3f}")


if __name__ == "__main__":
    main()
