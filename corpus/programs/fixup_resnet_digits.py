"""Residual convnet without normalisation; the last convolution of every branch starts at zero (Fixup / SkipInit)."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(c, c, 3, padding=1)
        self.conv2 = nn.Conv2d(c, c, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(self.conv2.bias)

    def forward(self, x):
        return x + self.conv2(F.relu(self.conv1(F.relu(x))))


class Net(nn.Module):
    def __init__(self, width=12, depth=6):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.blocks = nn.ModuleList(Block(width) for _ in range(depth))
        self.fc = nn.Linear(width, 10)

    def forward(self, x):
        x = self.stem(x)
        for i, block in enumerate(self.blocks):
            x = block(x)
            if i == 2:
                x = F.max_pool2d(x, 2)
        return self.fc(F.relu(x).amax(dim=(2, 3)))


torch.manual_seed(0)
d = load_digits()
xtr, xte, ytr, yte = train_test_split(d.images, d.target, test_size=300, random_state=0)
to = lambda a: torch.tensor(a, dtype=torch.float32).unsqueeze(1).div(8).sub(1)
xtr, xte = to(xtr), to(xte)
ytr, yte = torch.tensor(ytr), torch.tensor(yte)

model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
batch = 48
it = 0
for epoch in range(8):
    for chunk in torch.randperm(len(xtr)).split(batch):
        logits = model(xtr[chunk])
        loss = F.cross_entropy(logits, ytr[chunk])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        it += 1
    model.eval()
    with torch.no_grad():
        acc = (model(xte).argmax(1) == yte).float().mean().item()
    model.train()
    print(f"epoch {epoch} it {it} loss {loss.item():.3f} test acc {acc:.3f}")
