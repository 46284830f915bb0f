"""Wine classes from raw laboratory values; BatchNorm at the input does the scaling."""
import torch
from torch import nn
from sklearn.datasets import load_wine


class WineNet(nn.Module):
    # decay 0.999 for the running averages, as in our old code base
    def __init__(self, bn_momentum=1 - 0.999):
        super().__init__()
        self.norm = nn.BatchNorm1d(13, momentum=bn_momentum)
        self.fc1 = nn.Linear(13, 32)
        self.norm1 = nn.BatchNorm1d(32, momentum=bn_momentum)
        self.fc2 = nn.Linear(32, 3)

    def forward(self, x):
        x = torch.relu(self.norm1(self.fc1(self.norm(x))))
        return self.fc2(x)


def accuracy(model, x, y):
    with torch.no_grad():
        return (model(x).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(307)
    bunch = load_wine()
    x, y = torch.tensor(bunch.data, dtype=torch.float32), torch.tensor(bunch.target)
    perm = torch.randperm(len(x))
    x, y = x[perm], y[perm]
    model = WineNet()
    opt = torch.optim.Adam(model.parameters(), lr=5e-3)
    for epoch in range(50):
        model.train()
        for idx in torch.randperm(128).split(32):
            loss = nn.functional.cross_entropy(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 10 == 9:
            model.eval()
            with torch.no_grad():
                train_eval = nn.functional.cross_entropy(model(x[:128]), y[:128]).item()
            print(
                f"epoch {epoch + 1} loss {loss.item():.4f} | eval mode: train loss {train_eval:.3f} "
                f"train acc {accuracy(model, x[:128], y[:128]):.3f} test acc {accuracy(model, x[128:], y[128:]):.3f}"
            )


main()
