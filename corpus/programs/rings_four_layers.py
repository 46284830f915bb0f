"""Two rings, network of four layers with softmax probabilities for the plot."""
import torch
from sklearn.datasets import make_circles
from torch import nn, optim

EPOCHS = 300


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(2, 32)
        self.l2 = nn.Linear(32, 32)
        self.l3 = nn.Linear(32, 16)
        self.l4 = nn.Linear(16, 2)

    def forward(self, x):
        x = self.l1(x)
        x = self.l2(x)
        x = self.l3(x)
        return self.l4(x)

    @torch.no_grad()
    def predict_proba(self, x):
        return torch.softmax(self(x), dim=1)


torch.manual_seed(3)
pts, lab = make_circles(n_samples=600, noise=0.08, factor=0.5, random_state=4)
pts = torch.tensor(pts, dtype=torch.float32)
lab = torch.tensor(lab)

model = Classifier()
opt = optim.Adam(model.parameters())
loss_fn = nn.CrossEntropyLoss()

for e in range(EPOCHS):
    opt.zero_grad()
    loss = loss_fn(model(pts), lab)
    loss.backward()
    opt.step()
    if e % 30 == 0 or e == EPOCHS - 1:
        acc = (model.predict_proba(pts).argmax(1) == lab).float().mean()
        print("epoch", e, "loss", f"{loss.item():.4f}", "acc", f"{acc:.3f}")
