import torch
import torch.nn as nn
from sklearn.datasets import make_multilabel_classification


class TagModel(nn.Module):
    def __init__(self, n_in, n_tags):
        super().__init__()
        self.hidden = nn.Linear(n_in, 64)
        self.tags = nn.Linear(64, n_tags)

    def forward(self, x):
        return torch.sigmoid(self.tags(torch.relu(self.hidden(x))))


def fit(model, x, y, epochs, lr=2e-3, batch=50):
    opt = torch.optim.NAdam(model.parameters(), lr=lr)
    bce = nn.BCELoss()
    history = []
    for epoch in range(epochs):
        for idx in torch.randperm(len(x)).split(batch):
            loss = bce(model(x[idx]), y[idx])
            opt.zero_grad()
            loss.backward()
            opt.step()
            history.append(loss.item())
        if epoch % 6 == 5:
            print(f"epoch {epoch + 1:2d} bce {sum(history[-20:]) / 20:.4f}")
    return history


if __name__ == "__main__":
    torch.manual_seed(139)
    x, y = make_multilabel_classification(2000, 20, n_classes=6, n_labels=2, random_state=139)
    x = torch.tensor(x, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    y = torch.tensor(y, dtype=torch.float32)
    model = TagModel(20, 6)
    fit(model, x[:1600], y[:1600], epochs=24)
    with torch.no_grad():
        hit = ((model(x[1600:]) > 0.5).float() == y[1600:]).float().mean()
        base = torch.maximum(y.mean(0), 1 - y.mean(0)).mean()
    print(f"label accuracy {hit:.3f} (majority {base:.3f})")
