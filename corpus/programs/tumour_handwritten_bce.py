"""Tumour data, binary cross-entropy as in the lecture notes."""
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler


class TumourNet(torch.nn.Module):
    def __init__(self, n_features):
        super().__init__()
        self.fc1 = torch.nn.Linear(n_features, 40)
        self.fc2 = torch.nn.Linear(40, 1)

    def forward(self, x):
        return torch.sigmoid(self.fc2(torch.relu(self.fc1(x)))).view(-1)


def binary_cross_entropy(p, y):
    return -(y * torch.log(p) + (1 - y) * torch.log(1 - p)).mean()


torch.manual_seed(15)
raw = load_breast_cancer()
x = torch.tensor(StandardScaler().fit_transform(raw.data), dtype=torch.float32)
y = torch.tensor(raw.target, dtype=torch.float32)
perm = torch.randperm(len(y))
train, test = perm[:450], perm[450:]
model = TumourNet(x.shape[1])
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(1, 61):
    for batch in train[torch.randperm(450)].split(45):
        optimizer.zero_grad()
        loss = binary_cross_entropy(model(x[batch]), y[batch])
        loss.backward()
        optimizer.step()
    if epoch % 5 == 0 or epoch < 3:
        with torch.no_grad():
            acc = ((model(x[test]) > 0.5).float() == y[test]).float().mean().item()
        print(f"epoch {epoch} loss {loss.item():.5f} test accuracy {acc:.3f}")
