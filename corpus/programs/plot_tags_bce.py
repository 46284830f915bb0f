"""Several tags per movie from plot features (multi-label)."""
import torch
import torch.nn as nn
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score


class TagModel(nn.Module):
    def __init__(self, n_in, n_tags):
        super().__init__()
        self.bn = nn.BatchNorm1d(n_in)
        self.fc1 = nn.Linear(n_in, 64)
        self.fc2 = nn.Linear(64, n_tags)
        self.act = nn.ReLU()
        self.prob = nn.Sigmoid()

    def forward(self, x):
        x = self.act(self.fc1(self.bn(x)))
        return self.prob(self.fc2(x))


def fit(model, X, Y, epochs, lr, batch_size=64):
    optim = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    loss_fn = nn.BCELoss()
    for epoch in range(epochs):
        model.train()
        order = torch.randperm(len(X))
        losses = []
        for s in range(0, len(X), batch_size):
            sel = order[s:s + batch_size]
            optim.zero_grad()
            loss = loss_fn(model(X[sel]), Y[sel])
            loss.backward()
            optim.step()
            losses.append(loss.item())
        if epoch % 5 == 4:
            print(f"epoch {epoch + 1}: loss {sum(losses) / len(losses):.4f}")
    return model


torch.manual_seed(75)
X, Y = make_multilabel_classification(3000, 40, n_classes=8, n_labels=2, length=60, random_state=7)
X, Y = torch.tensor(X, dtype=torch.float32), torch.tensor(Y, dtype=torch.float32)
model = fit(TagModel(40, 8), X[:2500], Y[:2500], epochs=30, lr=0.02)
model.eval()
with torch.no_grad():
    pred = (model(X[2500:]) > 0.5).int()
print("micro F1", round(f1_score(Y[2500:], pred, average="micro"), 3))
