"""Classifier with three exits; every exit is trained on the same labels and the three losses are added up."""
import torch
from torch import nn
from sklearn.datasets import load_digits


class EarlyExit(nn.Module):
    def __init__(self, d=64, width=48):
        super().__init__()
        self.stages = nn.ModuleList([nn.Linear(d, width), nn.Linear(width, width), nn.Linear(width, width)])
        self.exits = nn.ModuleDict({f"exit{i}": nn.Linear(width, 10) for i in range(3)})

    def forward(self, x):
        scores = {}
        for (name, head), stage in zip(self.exits.items(), self.stages):
            x = nn.functional.leaky_relu(stage(x))
            scores[name] = head(x)
        return scores


def main():
    torch.manual_seed(353)
    x, y = load_digits(return_X_y=True)
    x, y = torch.tensor(x).float() / 16, torch.tensor(y)
    net = EarlyExit()
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    ce = nn.CrossEntropyLoss()
    for epoch in range(15):
        for rows in torch.randperm(1400).split(50):
            scores = net(x[rows])
            loss = sum(ce(s, y[rows]) for s in scores.values())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if epoch % 3 == 2:
            with torch.no_grad():
                accs = {n: round((s.argmax(1) == y[1400:]).float().mean().item(), 3) for n, s in net(x[1400:]).items()}
            print(f"epoch {epoch + 1} sum of losses {loss.item():.4f} {accs}")


if __name__ == "__main__":
    main()
